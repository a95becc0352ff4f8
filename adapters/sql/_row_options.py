"""What a guard of rows was told: the marks in the rows, under the names of their resources, as plans."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import Table

from adapters._tx import AsyncTx, Plan, Statement, SyncTx, run
from adapters.sql._explain import explaining
from adapters.sql._marks import all_or_nothing
from adapters.sql._options import Options, Write
from adapters.sql._protect_list import list_protected
from adapters.sql._rowmark import NAMES
from fencing._explain import Explanation
from fencing._findings import Finding
from fencing._law import Mark
from fencing._token import Token

if TYPE_CHECKING:
    from adapters.sql._rows import RowGuard

Tx = SyncTx | AsyncTx
_LOOKED_AT = 1000
"""How many marks in ``fencing_mark`` the doctor compares with those in the rows."""


class RowOptions(Options):
    """Options under which the resources of a call are rows, and their marks are in them.

    A row's mark is where :class:`RowGuard` has it: in the row, else in ``fencing_mark``.
    """

    __slots__ = ("rows",)

    rows: RowGuard

    def show(self, tx: Tx, resources: tuple[str, ...], token: Token, holder: str) -> Plan[None]:
        """Show the token to the rows, in the order of their names: all marks are raised or none."""
        return self._raise(tx, resources, token, holder, making=False)

    def show_at_once(self, tx: SyncTx, resources: tuple[str, ...], token: Token, holder: str) -> None:
        """As :meth:`show`, and done."""
        run(self.show(tx, resources, token, holder), tx)

    def raise_fence(self, tx: Tx, write: Write) -> Plan[None]:
        """Raise the marks, making those that are missing."""
        return self._raise(tx, write.resources, write.token, write.holder, making=True)

    def _raise(self, tx: Tx, resources: tuple[str, ...], token: Token, holder: str, making: bool) -> Plan[None]:
        keys = [self.rows.names.key_of(name) for name in resources]

        def work() -> Plan[None]:
            for key in keys:
                yield from self.rows.raising(tx, key, token, holder, making=making)

        return work() if len(keys) == 1 else all_or_nothing(work(), "fencing_rows")

    def read_mark(self, tx: Tx, resource: str) -> Plan[Mark | None]:
        """Read the mark in the row, or the one that is kept for it."""
        return self.rows.reading(tx, self.rows.names.key_of(resource))

    def lock_in_row(self, tx: Tx, resource: str) -> Plan[Mark | None]:
        """Read and lock the mark in the row, if there is one."""
        return self.rows.reading_row(self.rows.names.key_of(resource), lock=True)

    def adopt_in_row(self, tx: Tx, resource: str, token: Token, holder: str) -> Plan[None]:
        """Set the mark in the row, which is locked."""
        return self.rows.setting(self.rows.names.key_of(resource), token, holder)

    def explain(self, tx: Tx, resource: str) -> Plan[Explanation]:
        """Say what is known of the row."""
        in_row = yield from self.rows.reading_row(self.rows.names.key_of(resource), lock=False)
        return (yield from explaining(self.dialect(tx.dialect), tx.downstream, resource, in_row))

    def list_marks(self, tx: Tx, prefix: str, limit: int) -> Plan[list[tuple[str, Mark]]]:
        """The marks in rows, and those that are kept for rows without one, by name."""
        found = dict((yield from self.rows.listing(prefix, limit)))
        for name, mark in (yield from self._kept(tx, prefix, limit)):
            if (
                name not in found
                and (yield from self.rows.reading_row(self.rows.names.key_of(name), lock=False)) is None
            ):
                found[name] = mark
        return sorted(found.items())[:limit]

    def _kept(self, tx: Tx, prefix: str, limit: int) -> Plan[list[tuple[str, Mark]]]:
        """The marks in ``fencing_mark`` under names of this table's rows."""
        every = yield from Options.list_marks(self, tx, prefix, limit)
        return [(name, mark) for name, mark in every if self.rows.names.is_one(name)]

    def diagnose(self, tx: Tx) -> Plan[list[Finding]]:
        """Say what in this database, and in the table, would break a promise."""
        found = yield from Options.diagnose(self, tx)
        table = self.rows.table
        statement, parameters = _columns(tx.dialect, table)
        there = {str(row[0]) for row in (yield Statement(statement, parameters))}
        missing = [name for name in NAMES if name not in there]
        if missing:
            found.append(
                Finding(
                    "sql.row_marks",
                    "broken",
                    tx.downstream,
                    f"{table.fullname} has no columns {', '.join(missing)}",
                    "no change through its RowGuard can be made",
                    "add the columns of adapters.sql.row_mark_columns() to the table",
                )
            )
            return found
        issuers = yield Statement(self.rows.statements.issuers)
        marks = ", ".join(f"{issuer} ({count}, up to {value})" for issuer, count, value in issuers if issuer) or "none"
        without = sum(count for issuer, count, _ in issuers if not issuer)
        found.append(
            Finding(
                "sql.row_marks",
                "ok",
                tx.downstream,
                f"issuers behind the marks in rows of {table.fullname}: {marks}; rows without a mark: {without}",
            )
        )
        if tx.dialect != "mysql":
            names = {table.name, f"{table.schema or 'public'}.{table.name}"}
            if any(one.table in names for one in (yield from list_protected(tx.dialect, self.schema))):
                found.append(
                    Finding(
                        "sql.row_marks",
                        "broken",
                        tx.downstream,
                        f"{table.fullname} is protected, whose triggers look for a mark in fencing_mark",
                        "changes of a RowGuard are refused there, whose marks are in the rows",
                        "adapters.sql.unprotect() the table, or write it inside fenced_write() alone",
                    )
                )
        ahead = yield from self._ahead(tx)
        if ahead:
            found.append(
                Finding(
                    "sql.row_marks",
                    "warning",
                    tx.downstream,
                    f"{len(ahead)} rows of {table.fullname} carry an older mark than fencing_mark has under their "
                    f"names, such as {ahead[0]!r}",
                    "a fence was raised by the name alone, where a change of the row does not look: an older holder "
                    "is not shut out",
                    "in fences= and raise_fence() pass RowGuard(...).on(engine) for these resources",
                )
            )
        return found

    def _ahead(self, tx: Tx) -> Plan[list[str]]:
        ahead = []
        for name, kept in (yield from self._kept(tx, "", _LOOKED_AT)):
            mark = yield from self.rows.reading_row(self.rows.names.key_of(name), lock=False)
            if mark is not None and (mark.token.issuer != kept.token.issuer or mark.token.value < kept.token.value):
                ahead.append(name)
        return ahead


def _columns(dialect: str, table: Table) -> tuple[str, dict[str, Any]]:
    """The statement that tells which columns the table has in the database."""
    if dialect == "sqlite":
        return "select name from pragma_table_info(:name, :schema)", {
            "name": table.name,
            "schema": table.schema or "main",
        }
    here = "current_schema()" if dialect == "postgresql" else "database()"
    return (
        f"""select column_name from information_schema.columns
            where table_name = :name and table_schema = coalesce(:schema, {here})""",
        {"name": table.name, "schema": table.schema},
    )
