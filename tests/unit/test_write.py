"""`fenced_write()` over the model guard: whose token is meant, both forms, both ports, and the event record."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fencing import Token, current_lease, errors, fenced_write, history, raise_fence, read_mark
from fencing._lease import Lease, holding, lease_clock
from fencing.testing import AsyncMemoryGuard, MemoryGuard


def token(value: int, issuer: str = "shop") -> Token:
    return Token(value, issuer, "lineage-a")


def lease(value: int, name: str = "job 1", seconds: float = 60) -> Lease:
    return Lease(token(value), name, f"worker-{value}", deadline=lease_clock() + seconds)


def test_the_paused_worker_is_refused() -> None:
    guard = MemoryGuard()
    with fenced_write(guard, "invoice/1", token=token(1)) as store:
        store.write("total", "first")
    with fenced_write(guard, "invoice/1", token=token(2)) as store:
        store.write("total", "second")
    with pytest.raises(errors.StaleTokenError) as caught, fenced_write(guard, "invoice/1", token=token(1)) as store:
        store.write("total", "first again")
    assert guard.store.values == {"total": "second"}
    assert (caught.value.presented, caught.value.mark) == (token(1), token(2))


def test_a_raised_fence_stops_the_older_holder_before_the_newer_one_writes() -> None:
    guard = MemoryGuard(on_missing="reject")
    raise_fence(guard, "a", "b", token=token(2))
    for name in ("a", "b"):
        with pytest.raises(errors.StaleTokenError), fenced_write(guard, name, token=token(1)):
            pass
    with pytest.raises(errors.MarkMissingError), fenced_write(guard, "c", token=token(9)):
        pass


def test_a_refusal_of_one_resource_raises_none() -> None:
    guard = MemoryGuard()
    raise_fence(guard, "b", token=token(5))
    with pytest.raises(errors.StaleTokenError), fenced_write(guard, "a", "b", token=token(4)):
        pass
    assert read_mark(guard, "a") is None


def test_a_block_that_was_never_entered_is_told() -> None:
    with pytest.warns(RuntimeWarning, match="'with fenced_write"):
        fenced_write(MemoryGuard(), "a", token=token(1))
    with pytest.warns(RuntimeWarning, match="'async with fenced_write"):
        fenced_write(AsyncMemoryGuard(MemoryGuard()), "a", token=token(1))


def test_an_effect_that_would_not_run_is_refused_before_anything_happens() -> None:
    def generator(store: object) -> object:
        yield store

    async def asynchronous(store: object) -> object:
        return store

    guard = MemoryGuard()
    for effect in (generator, asynchronous):
        with pytest.raises(TypeError, match="effect="):
            fenced_write(guard, "a", effect=effect, token=token(1))
    with pytest.raises(TypeError, match="effect="):
        fenced_write(AsyncMemoryGuard(MemoryGuard()), "a", effect=generator, token=token(1))
    assert read_mark(guard, "a") is None


def test_a_body_that_raises_leaves_nothing() -> None:
    guard = MemoryGuard()
    with pytest.raises(ZeroDivisionError), fenced_write(guard, "a", token=token(1)) as store:
        store.write("x", 1 / 0)
    assert read_mark(guard, "a") is None


def test_the_effect_form_returns_what_the_effect_returned() -> None:
    guard = MemoryGuard()
    assert fenced_write(guard, "a", effect=lambda store: store.read("x"), token=token(1)) is None
    assert fenced_write(guard, "a", effect=lambda _: 7, token=token(1)) == 7


def test_once_applies_once_over_holders_and_the_token_is_judged_first() -> None:
    guard, calls = MemoryGuard(), []

    def effect(_: object) -> object:
        calls.append(1)
        return ("charged", len(calls))

    assert fenced_write(guard, "a", effect=effect, token=token(1), once="charge-1") == ["charged", 1]
    assert fenced_write(guard, "a", effect=effect, token=token(2), once="charge-1") == ["charged", 1]
    with pytest.raises(errors.StaleTokenError):
        fenced_write(guard, "a", effect=effect, token=token(1), once="charge-1")
    with pytest.raises(errors.KeyConflictError):
        fenced_write(guard, "a", "b", effect=effect, token=token(2), once="charge-1")
    assert calls == [1]


def test_the_running_lease_is_found() -> None:
    guard = MemoryGuard()
    with pytest.raises(errors.NoLeaseError):
        fenced_write(guard, "a")
    with holding(lease(3)) as held:
        assert current_lease() is held
        with fenced_write(guard, "a"):
            pass
        with holding(lease(4, "inner")), pytest.raises(errors.AmbiguousLeaseError):
            fenced_write(guard, "a")
        with ThreadPoolExecutor(1) as pool:
            with pytest.raises(errors.NoLeaseError):
                pool.submit(fenced_write, guard, "a").result()
            pool.submit(raise_fence, guard, "a", token=held).result()
    mark = read_mark(guard, "a")
    assert (mark.token, mark.holder) == (token(3), "worker-3")


def test_only_an_ended_lease_is_refused_locally() -> None:
    guard, over = MemoryGuard(), lease(3, seconds=-1)
    with pytest.raises(errors.LeaseLostError):
        over.ensure()
    assert over.lost.is_set()
    with fenced_write(guard, "a", token=over):
        pass
    over.end("settled")
    with pytest.raises(errors.LeaseLostError, match="settled"):
        fenced_write(guard, "a", token=over)


def test_a_lease_tells_its_time_and_a_deadline_never_moves_back() -> None:
    held = lease(1, seconds=100)
    assert 99 < held.remaining() <= 100
    held.extend(lease_clock() + 10)
    assert held.remaining() > 99
    assert not held.expire_if_due()
    assert isinstance(held.lost, threading.Event)


@pytest.mark.parametrize(("wrong", "says"), [("shop/l/7", "Token.parse"), (7, ".token"), (object(), ".token")])
def test_what_is_no_token_is_a_type_error(wrong: object, says: str) -> None:
    with pytest.raises(TypeError, match=says.replace(".", r"\.")):
        fenced_write(MemoryGuard(), "a", token=wrong)


def test_wrong_arguments_change_nothing() -> None:
    guard = MemoryGuard()
    with pytest.raises(ValueError, match="empty"):
        fenced_write(guard, "", token=token(1))
    with pytest.raises(TypeError, match="effect"):
        fenced_write(guard, "a", token=token(1), once="k")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="non-empty"):
        fenced_write(guard, "a", token=token(1), once="", effect=lambda _: None)
    with pytest.raises(TypeError, match="no guard knows"):
        fenced_write(object(), "a", token=token(1))
    assert guard.read_mark("a") is None


def test_the_async_port_keeps_the_same_law() -> None:
    guard = AsyncMemoryGuard(MemoryGuard())

    async def story() -> None:
        async with fenced_write(guard, "a", token=token(2)) as store:
            store.write("x", 2)
        with pytest.raises(errors.StaleTokenError):
            async with fenced_write(guard, "a", token=token(1)):
                pass
        await raise_fence(guard, "b", token=token(5))
        assert (await read_mark(guard, "b")).token == token(5)

        async def effect(store: object) -> str:
            return "done"

        assert await fenced_write(guard, "a", effect=effect, token=token(3)) == "done"
        with pytest.raises(TypeError, match="once="):
            await fenced_write(guard, "a", effect=effect, token=token(3), once="k")

    asyncio.run(story())


def test_every_write_is_recorded_with_its_end(tmp_path: Path) -> None:
    guard, path = MemoryGuard(), tmp_path / "history.jsonl"
    record = history.JsonLines(path)
    with record.subscribed():
        raise_fence(guard, "a", token=token(2))
        with pytest.raises(errors.StaleTokenError), fenced_write(guard, "a", token=token(1)):
            pass
        fenced_write(guard, "a", effect=lambda _: None, token=token(2))
    record.close()
    raise_fence(guard, "a", token=token(3))
    with path.open("a") as file:
        file.write('{"kind": "write", "outco')
    events = history.read_events(path)
    assert [(event.kind, event.outcome, event.error) for event in events] == [
        ("raise", "accepted", ""),
        ("write", "refused", "StaleTokenError"),
        ("write", "accepted", ""),
    ]
    assert all(event.began <= event.ended and event.resources == ("a",) for event in events)
    assert [event.refusing for event in events] == ["", "", ""]
    with pytest.raises(ValueError, match="line 1"):
        history.read_events(["nonsense", "more"])


def test_a_refusal_of_several_resources_is_recorded_with_the_one_that_refused() -> None:
    guard, events = MemoryGuard(), list[history.Event]()
    raise_fence(guard, "b", token=token(2))
    unsubscribe = history.subscribe(events.append)
    try:
        for _ in range(2):
            with pytest.raises(errors.StaleTokenError), fenced_write(guard, "a", "b", "c", token=token(1)):
                pass
            raise_fence(guard, "a", token=token(1))
    finally:
        unsubscribe()
    assert [event.refusing for event in events] == ["b", "", "b", ""]
    assert history.check_history(events).explained


@pytest.mark.parametrize(
    ("error", "outcome"), [(KeyboardInterrupt, "unknown"), (asyncio.CancelledError, "unknown"), (OSError, "failed")]
)
def test_what_interrupts_a_write_leaves_its_end_unknown(error: type[BaseException], outcome: str) -> None:
    events: list[history.Event] = []
    unsubscribe = history.subscribe(events.append)
    try:
        with pytest.raises(error), fenced_write(MemoryGuard(), "a", token=token(1)):
            raise error
    finally:
        unsubscribe()
    assert [event.outcome for event in events] == [outcome]


def test_a_name_with_a_line_separator_of_unicode_stays_one_line_of_the_record(tmp_path: Path) -> None:
    names = ("a\u2028b", "a\x85b", "a\nb", "a\x1eb")
    record = history.JsonLines(tmp_path / "history.jsonl")
    with record.subscribed():
        raise_fence(MemoryGuard(), *names, token=token(2))
        raise_fence(MemoryGuard(), "last", token=token(2))
    record.close()
    first, last = history.read_events(tmp_path / "history.jsonl")
    assert (sorted(first.resources), last.resources) == (sorted(names), ("last",))


def test_importing_fencing_loads_the_standard_library_only() -> None:
    program = (
        "import sys; before = set(sys.modules); import fencing; "
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}; "
        "print(*sorted(new - set(sys.stdlib_module_names) - {'fencing'}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
