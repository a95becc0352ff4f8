"""Claim, settle, renew and rescue as statements: who may do what with a job, under which token, and what is kept."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from support.jobs import Hand, Tables, completed, ended, installed_beside
from support.waiting import eventually

from scheduler import Scheduler
from scheduler._lanes import PRIORITIES, Lanes
from scheduler._store import Settled
from scheduler.console.embedded import Postgres
from scheduler.errors import NotMigratedError, ValueRefusedError

LEASE = 30.0


@pytest.fixture(scope="module")
def database(postgres: Postgres) -> Iterator[str]:
    yield postgres.create_database("scheduler_claims")
    postgres.drop_database("scheduler_claims")


@pytest.fixture
def ground(database: str) -> Iterator[tuple[Scheduler, Tables]]:
    with installed_beside(database) as (app, tables):
        app.task("work", lease=LEASE)(print)
        app.task("other", lease=60)(print)
        yield app, tables


@pytest.fixture
def hand(tables: Tables) -> Iterator[Callable[..., Hand]]:
    hands: list[Hand] = []

    def make(leases: dict[str, float] | None = None, **options: Any) -> Hand:
        hands.append(Hand(tables.dsn, leases or {"work": LEASE}, schema=tables.schema, **options))
        return hands[-1]

    yield make
    for one in hands:
        one.close()


# -- the claim


def test_jobs_are_claimed_by_priority_then_due_time_then_age_and_tokens_rise_in_that_order(
    app: Scheduler, hand: Callable[..., Hand]
) -> None:
    due = datetime(2026, 1, 1, tzinfo=UTC)
    later = app.enqueue("work", due_at=due + timedelta(hours=1)).id
    first = app.enqueue("work", due_at=due).id
    second = app.enqueue("other", due_at=due).id
    urgent = app.enqueue("other", due_at=due + timedelta(hours=2), priority=5).id
    claimed = hand({"work": LEASE, "other": LEASE}).claim(3)
    assert [job.id for job in claimed] == [urgent, first, second]
    tokens = [job.token for job in claimed]
    assert tokens == sorted(set(tokens))
    assert [job.id for job in hand({"work": LEASE, "other": LEASE}, owner="b").claim(3)] == [later]


def test_a_claim_tells_everything_about_the_job_and_starts_the_lease_of_its_task(
    app: Scheduler, tables: Tables, hand: Callable[..., Hand]
) -> None:
    app.enqueue("work", {"n": 1}, key="k", priority=3)
    app.enqueue("other", [1])
    jobs = {job.task: job for job in hand({"work": LEASE, "other": 60}).claim()}
    work = jobs["work"]
    assert (work.args, work.key, work.priority, work.attempt, work.max_attempts, work.yields) == (
        {"n": 1},
        "k",
        3,
        1,
        5,
        0,
    )
    assert jobs["other"].args == [1]
    for job in jobs.values():
        row = tables.job(job.id)
        assert row["status"] == "leased"
        assert (row["owner"], row["token"], row["lineage"]) == ("hand", job.token, job.lineage)
        assert (row["lease_until"] - row["claimed_at"]).total_seconds() == {"work": LEASE, "other": 60}[job.task]
    assert work.lineage == tables.one("select lineage from {s}.issuer")


def test_nothing_is_claimed_before_it_is_due(app: Scheduler, tables: Tables, hand: Callable[..., Hand]) -> None:
    number = app.enqueue("work", due_at=datetime.now(UTC) + timedelta(hours=1)).id
    assert hand().claim() == []
    tables.move_clock(3601)
    assert hand().claim_one().id == number


def test_a_worker_claims_and_rescues_only_what_it_can_run_and_the_rest_stays_visible(
    app: Scheduler, tables: Tables, hand: Callable[..., Hand]
) -> None:
    """river #1105."""
    mine, foreign = app.enqueue("work").id, app.enqueue("other").id
    elsewhere = app.enqueue("work", queue="slow").id
    narrow = hand({"work": LEASE})
    assert [job.id for job in narrow.claim()] == [mine]
    assert {job.id for job in hand({"work": LEASE, "other": LEASE}, queues=("default", "slow")).claim()} == {
        foreign,
        elsewhere,
    }
    tables.move_clock(LEASE + 1)
    assert [job.id for job in narrow.rescue()] == [mine]
    assert tables.states() == {"ready": 1, "leased": 2}, "what it cannot run is still there to be rescued by others"


def test_tasks_and_queues_that_share_a_number_in_the_index_are_told_apart(
    app: Scheduler, tables: Tables, hand: Callable[..., Hand]
) -> None:
    tables.rows(
        "create or replace function {s}.pair(queue text, task text) returns bigint"
        " language sql immutable as 'select 0::bigint'"
    )
    tables.rows("reindex index {s}.job_ready")
    for priority in (0, 3, 9):
        app.enqueue("other", priority=priority)
        app.enqueue("work", queue="beside", priority=priority)
    forms: list[dict[str, Any]] = [{"guarded": False, "sweep": False}, {"guarded": False}, {}]
    for at in range(len(forms) + 1):
        app.enqueue("work", at, priority=3 if at else 0)
    for at, form in enumerate(forms):
        assert [job.args for job in hand(owner=f"of one lane {at}").claim(1, **form)] == [at]
    app.queue("default", limit=9)
    app.sync_queues()
    limited = hand({"work": LEASE, "unknown": LEASE}, owner="limited").claim()
    assert [(job.queue, job.task, job.args) for job in limited] == [("default", "work", len(forms))]
    app.enqueue("work", "third", queue="third")
    third = hand({"work": LEASE, "other": LEASE}, owner="third", queues=["third"])
    assert [job.args for job in third.claim()] == ["third"]
    assert not third.looks_again, "nothing of its own is left"
    assert not third.on("claim").execute(third.statements["lanes"], Lanes(["third"], ["work"]).search()).fetchall()
    assert tables.states() == {"leased": 5, "ready": 6}


@pytest.mark.parametrize("sweep", [False, True], ids=["told by a look", "told by a sweep"])
@pytest.mark.parametrize("kind", ["an exclusive job", "a limited queue"])
def test_the_guarded_claim_is_sent_only_where_something_needs_it_and_then_at_once(
    app: Scheduler, tables: Tables, hand: Callable[..., Hand], kind: str, sweep: bool
) -> None:
    one = hand()

    def guarded() -> int:
        text = "select count(*) from pg_prepared_statements where statement like '%walked as%'"
        return int(one.on("claim").execute(text, prepare=False).fetchall()[0][0])

    app.enqueue("work", "ordinary")
    app.enqueue("other", "of another task", exclusive="value")
    assert [job.args for job in one.claim(sweep=False)] == ["ordinary"]
    assert (one.claim(), guarded()) == ([], 0)
    if kind == "a limited queue":
        app.queue("default", limit=2)
        app.sync_queues()
    app.enqueue("work", "guarded", exclusive="value" if kind == "an exclusive job" else None)
    assert [job.args for job in one.claim(sweep=sweep)] == ["guarded"]
    assert guarded() == 1


def test_a_sweep_that_saw_nothing_ready_sends_no_claim_and_one_that_saw_a_part_does(
    app: Scheduler, hand: Callable[..., Hand]
) -> None:
    one = hand()
    assert one.claim() == []
    text = "select statement from pg_prepared_statements where statement like '%update%'"
    assert one.on("claim").execute(text, prepare=False).fetchall() == []
    for priority in range(PRIORITIES):
        app.enqueue("work", priority, priority=priority + 1)
    assert [job.priority for job in one.claim(1)] == [PRIORITIES]
    assert [job.priority for job in one.claim(1)] == [PRIORITIES - 1], "the look went on below those that it had found"


def test_a_batch_takes_no_more_than_it_asks_for(app: Scheduler, tables: Tables, hand: Callable[..., Hand]) -> None:
    app.enqueue_many("work", range(50))
    assert len(hand().claim(20)) == 20
    assert tables.states() == {"leased": 20, "ready": 30}


def test_rows_that_another_claim_holds_are_skipped_not_waited_for(
    app: Scheduler, tables: Tables, hand: Callable[..., Hand]
) -> None:
    first, second = app.enqueue("work").id, app.enqueue("work").id
    with psycopg.connect(tables.dsn) as other:
        other.execute(f"select from {tables.schema}.job where id = {first} for update".encode())
        assert [job.id for job in hand().claim()] == [second]
    assert [job.id for job in hand().claim()] == [first]


def test_the_rows_of_a_worker_that_is_stopped_inside_a_transaction_come_back_to_the_others(
    app: Scheduler, tables: Tables, hand: Callable[..., Hand]
) -> None:
    """SIGSTOP inside an open claim: its rows were invisible to everyone. The server ends such a session."""
    number = app.enqueue("work").id
    stopped, other = hand(owner="stopped"), hand(owner="other")
    claiming = stopped.on("claim")
    claiming.execute("set idle_in_transaction_session_timeout = 0")
    claiming.execute("begin")
    job = stopped.claim_one()
    assert other.claim() == []
    claiming.execute("set idle_in_transaction_session_timeout = '100ms'")  # not the 10 s that workers have
    (taken,) = eventually(other.claim, "it can be claimed again")
    assert (taken.id, taken.attempt) == (number, 1)
    assert taken.token > job.token
    with pytest.raises(psycopg.Error):
        claiming.execute("commit")


def test_every_claim_gets_a_new_token_also_for_the_same_worker(
    app: Scheduler, tables: Tables, hand: Callable[..., Hand]
) -> None:
    """oban #862, goatbeat: a re-claim by the same holder kept its token."""
    app.enqueue("work")
    worker, seen = hand(), []
    for _ in range(3):
        job = worker.claim_one()
        seen.append(job.token)
        worker.settle(ended(job, "ready", "returned"))
    assert seen == sorted(set(seen))
    assert len(seen) == 3


def test_without_tables_the_error_says_what_to_do(database: str) -> None:
    fresh = Scheduler(database, schema="never_made")
    fresh.task("work")(print)
    with pytest.raises(NotMigratedError, match="run `fencing migrate`"):
        fresh.enqueue("work")
    with pytest.raises(NotMigratedError, match="run `fencing migrate`"):
        fresh.run_worker()
    fresh.close()


def test_an_issuer_that_was_removed_issues_nothing(app: Scheduler, tables: Tables, hand: Callable[..., Hand]) -> None:
    app.enqueue("work")
    tables.rows("delete from {s}.issuer")
    with pytest.raises(NotMigratedError, match="issuer was never installed"):
        hand().claim()
    assert tables.states() == {"ready": 1}


# -- the settlement


def test_only_the_current_holder_settles_and_the_live_holders_outcome_stands(
    app: Scheduler, tables: Tables, hand: Callable[..., Hand]
) -> None:
    """procrastinate, pgqueuer, apscheduler 4: a woken worker's completion or retry was accepted."""
    number = app.enqueue("work").id
    paused, live = hand(owner="paused"), hand(owner="live")
    old = paused.claim_one()
    tables.move_clock(LEASE + 1)
    assert [job.id for job in live.rescue()] == [number]
    assert paused.complete(old) is Settled.LOST, "rescued, claimed by nobody yet"
    new = live.claim_one()
    before = tables.job(number)
    for settlement in (
        completed(old, "old"),
        ended(old, "ready", "retried", delay=0.0),
        ended(old, "dead", "dead", error="old"),
        ended(old, "ready", "returned"),
        ended(old, "ready", "yielded", delay=0.0),
    ):
        assert paused.settle(settlement) == [Settled.LOST]
    assert paused.renew(old) == {}, "a renewal that comes late revives nothing"
    assert tables.job(number) == before
    assert live.complete(new, "new") is Settled.OK
    after = tables.job(number)
    assert (after["status"], after["result"], after["token"]) == ("completed", "new", new.token)
    assert paused.settle(completed(old, "old")) == [Settled.LOST]
    assert tables.job(number) == after
    assert tables.outcomes(number) == ["expired", "completed"]


def test_knowing_the_token_is_not_enough_nor_is_being_the_owner(
    app: Scheduler, tables: Tables, hand: Callable[..., Hand]
) -> None:
    app.enqueue("work")
    holder, thief = hand(owner="holder"), hand(owner="thief")
    job = holder.claim_one()
    assert thief.complete(job) is Settled.LOST
    assert thief.settle(ended(job, "ready", "retried", error="x", delay=0.0)) == [Settled.LOST]
    assert thief.renew(job) == {}
    assert holder.complete(job._replace(token=job.token + 1)) is Settled.LOST
    assert tables.states() == {"leased": 1}
    assert holder.complete(job) is Settled.OK
    assert thief.complete(job) is Settled.LOST, "not settled before by itself"
    assert holder.complete(job) is Settled.BEFORE


def test_a_worker_that_claims_its_own_job_again_cannot_settle_or_renew_under_the_old_token(
    app: Scheduler, tables: Tables, hand: Callable[..., Hand]
) -> None:
    """Also when both are in one batch: the old handler still ran when the new one began."""
    number = app.enqueue("work").id
    worker = hand()
    old = worker.claim_one()
    tables.move_clock(LEASE + 1)
    worker.rescue()
    new = worker.claim_one()
    assert (old.id, old.lineage) == (new.id, new.lineage)
    before = tables.job(number)
    assert worker.renew(old) == {}
    assert tables.job(number) == before
    assert worker.renew(old, new) == {new.token: True}
    assert worker.settle(completed(old, "old"), completed(new, "new")) == [Settled.LOST, Settled.OK]
    assert tables.job(number)["result"] == "new"
    assert worker.settle(completed(new, "new"), completed(old, "old")) == [Settled.BEFORE, Settled.LOST]


@pytest.mark.parametrize(
    ("state", "outcome"),
    [("completed", "completed"), ("ready", "retried"), ("ready", "yielded"), ("ready", "returned"), ("dead", "dead")],
)
def test_a_settlement_whose_reply_was_lost_may_be_asked_again(
    app: Scheduler, tables: Tables, hand: Callable[..., Hand], state: Any, outcome: Any
) -> None:
    number = app.enqueue("work").id
    worker = hand()
    job = worker.claim_one()
    settlement = ended(job, state, outcome, delay=0.0 if state == "ready" else None)
    assert worker.settle(settlement) == [Settled.OK]
    before = tables.job(number), tables.attempts(number)
    assert worker.settle(settlement) == [Settled.BEFORE]
    assert (tables.job(number), tables.attempts(number)) == before
    if state == "ready":
        again = worker.claim_one()
        assert worker.settle(settlement) == [Settled.BEFORE], "also while the next attempt runs"
        assert tables.job(number)["token"] == again.token


def test_a_retry_counts_and_moves_the_due_time(app: Scheduler, tables: Tables, hand: Callable[..., Hand]) -> None:
    number = app.enqueue("work").id
    worker = hand()
    worker.settle(ended(worker.claim_one(), "ready", "retried", error="boom", delay=100.0))
    row = tables.job(number)
    assert (row["status"], row["attempt"], row["yields"], row["error"]) == ("ready", 1, 0, "boom")
    ended_at = tables.attempts(number)[0]["ended_at"]
    assert (row["due_at"] - ended_at).total_seconds() == 100.0
    assert worker.claim() == []
    tables.move_clock(101)
    again = worker.claim_one()
    assert (again.attempt, again.yields) == (2, 0)


def test_a_yield_is_counted_as_such_and_not_as_an_attempt(
    app: Scheduler, tables: Tables, hand: Callable[..., Hand]
) -> None:
    number = app.enqueue("work").id
    worker = hand()
    for yields in (1, 2, 3):
        worker.settle(ended(worker.claim_one(), "ready", "yielded", error="met another", delay=0.0))
        row = tables.job(number)
        assert (row["attempt"], row["yields"]) == (0, yields)
    assert [(one["attempt"], one["outcome"]) for one in tables.attempts(number)] == [(1, "yielded")] * 3
    assert worker.claim_one().yields == 3


def test_what_is_given_back_unstarted_is_as_if_it_had_never_been_claimed_but_for_the_audit(
    app: Scheduler, tables: Tables, hand: Callable[..., Hand]
) -> None:
    number = app.enqueue("work").id
    worker = hand()
    worker.settle(ended(worker.claim_one(), "ready", "retried", error="an earlier attempt's", delay=0.0))
    before = tables.job(number)
    job = worker.claim_one()
    worker.settle(ended(job, "ready", "returned"))
    after = tables.job(number)
    for column in ("status", "attempt", "yields", "due_at", "error", "reason", "finished_at"):
        assert after[column] == before[column], column
    assert tables.outcomes(number) == ["retried", "returned"]
    assert worker.claim_one().id == number


def test_a_batch_of_every_outcome_is_settled_as_each_says(
    app: Scheduler, tables: Tables, hand: Callable[..., Hand]
) -> None:
    app.enqueue_many("work", range(7))
    worker, other = hand(), hand(owner="other")
    done, plain, retried, yielded, returned, buried, lost = worker.claim()
    answers = worker.settle(
        completed(lost._replace(token=1)),
        ended(buried, "dead", "dead", error="why", reason="no use"),
        completed(done, {"n": [1, None]}),
        ended(yielded, "ready", "yielded", delay=5.0),
        completed(plain),
        ended(retried, "ready", "retried", error="later", delay=10.0),
        ended(returned, "ready", "returned"),
    )
    assert answers == [Settled.LOST, *[Settled.OK] * 6]
    assert tables.job(done.id)["result"] == {"n": [1, None]}
    assert tables.job(plain.id)["result"] is None
    rows = {name: tables.job(job.id) for name, job in vars_of(retried=retried, yielded=yielded, returned=returned)}
    assert {name: (row["status"], row["attempt"], row["yields"], row["error"]) for name, row in rows.items()} == {
        "retried": ("ready", 1, 0, "later"),
        "yielded": ("ready", 0, 1, None),
        "returned": ("ready", 0, 0, None),
    }
    dead = tables.job(buried.id)
    assert (dead["status"], dead["error"], dead["reason"]) == ("dead", "why", "no use")
    assert dead["finished_at"] is not None
    assert tables.job(lost.id)["status"] == "leased"
    assert other.claim_one().id == returned.id


def vars_of(**named: Any) -> Any:
    return named.items()


def test_the_attempt_row_says_who_when_and_under_which_token(
    app: Scheduler, tables: Tables, hand: Callable[..., Hand]
) -> None:
    number = app.enqueue("work").id
    worker = hand(owner="me")
    job = worker.claim_one()
    claimed_at = tables.job(number)["claimed_at"]
    worker.settle(ended(job, "dead", "dead", error="why", reason="no use"))
    (attempt,) = tables.attempts(number)
    assert attempt["ended_at"] >= attempt["claimed_at"] == claimed_at
    assert (attempt["owner"], attempt["token"], attempt["lineage"]) == ("me", job.token, job.lineage)
    assert (attempt["attempt"], attempt["outcome"], attempt["error"]) == (1, "dead", "why")


def test_a_value_that_cannot_be_stored_is_told_from_a_database_that_is_not_there(
    app: Scheduler, hand: Callable[..., Hand]
) -> None:
    from scheduler._connect import translated

    app.enqueue("work")
    worker = hand()
    job = worker.claim_one()
    for settlement in (
        ended(job, "completed", "completed", result="{"),
        ended(job, "dead", "dead", error="a\x00b"),
        ended(job, "dead", "dead", error="\ud800"),
        ended(job, "ready", "retried", delay=1e300),
    ):
        with pytest.raises(ValueRefusedError), translated("settle"):
            worker.settle(settlement)
    assert worker.complete(job) is Settled.OK


# -- renewal and rescue


def test_a_renewal_extends_the_lease_from_now_and_keeps_token_and_attempt(
    app: Scheduler, tables: Tables, hand: Callable[..., Hand]
) -> None:
    number = app.enqueue("work").id
    worker = hand()
    job = worker.claim_one()
    before = tables.job(number)
    tables.move_clock(LEASE - 1)
    assert worker.renew(job) == {job.token: True}
    after = tables.job(number)
    assert LEASE - 1 <= (after["lease_until"] - before["lease_until"]).total_seconds() < LEASE + 300
    tables.move_clock(LEASE + 1)
    assert hand(owner="b").rescue() == []
    assert {**before, "lease_until": None} == {**after, "lease_until": None}


def test_a_lease_that_ran_out_but_was_not_taken_over_is_still_its_holders(
    app: Scheduler, tables: Tables, hand: Callable[..., Hand]
) -> None:
    app.enqueue("work")
    worker = hand()
    job = worker.claim_one()
    tables.move_clock(LEASE + 1)
    assert worker.renew(job) == {job.token: True}
    assert worker.rescue() == []
    tables.move_clock(3 * LEASE)
    assert worker.complete(job) is Settled.OK


def test_a_rescue_counts_as_an_attempt_and_a_job_that_kills_its_worker_each_time_ends_dead(
    app: Scheduler, tables: Tables, hand: Callable[..., Hand]
) -> None:
    """pgqueuer: rescues were not counted; chancy: a rescue raised the cap; graphile #204, #449: locked for ever."""
    number = app.enqueue("work").id
    for attempt in (1, 2, 3, 4, 5):
        crasher = hand(owner=f"crasher {attempt}")
        assert crasher.claim_one().attempt == attempt
        tables.move_clock(attempt * (LEASE + 1))
        (rescued,) = hand(owner="rescuer").rescue()
        assert (rescued.id, rescued.owner, rescued.attempt) == (number, f"crasher {attempt}", attempt)
        assert rescued.state == ("ready" if attempt < 5 else "dead")
    row = tables.job(number)
    assert (row["status"], row["reason"], row["attempt"]) == ("dead", "lease expired", 5)
    assert row["finished_at"] is not None
    assert tables.outcomes(number) == ["expired"] * 5
    assert hand(owner="next").claim() == []
    app.enqueue("work", {"next": True})
    assert hand(owner="next").claim_one().args == {"next": True}, "nothing stays locked"


def test_a_sweep_takes_only_what_has_expired_and_resurrects_nothing(
    app: Scheduler, tables: Tables, hand: Callable[..., Hand]
) -> None:
    """sidequest #208; hexpm #1825: rescue by age ran a nightly job three times a night."""
    app.enqueue_many("work", range(4))
    worker = hand()
    done, buried, renewed, lost = worker.claim()
    worker.settle(completed(done), ended(buried, "dead", "dead", error="no"))
    tables.move_clock(LEASE - 1)
    worker.renew(renewed)
    tables.move_clock(LEASE + 1)
    assert [job.id for job in hand(owner="b").rescue()] == [lost.id]
    assert hand(owner="b").rescue() == []
    assert tables.states() == {"completed": 1, "dead": 1, "leased": 1, "ready": 1}


def test_a_sweep_passes_by_what_its_holder_is_just_settling(
    app: Scheduler, tables: Tables, hand: Callable[..., Hand]
) -> None:
    number = app.enqueue("work").id
    worker = hand()
    job = worker.claim_one()
    tables.move_clock(LEASE + 1)
    settling = worker.on("settle")
    with settling.transaction():
        assert worker.complete(job) is Settled.OK
        assert hand(owner="b").rescue() == []
    assert hand(owner="b").rescue() == []
    assert tables.outcomes(number) == ["completed"]


def test_running_counts_come_from_live_leases_alone(app: Scheduler, tables: Tables, hand: Callable[..., Hand]) -> None:
    """apscheduler #1110: after five kills "maximum running reached" for ever. Nothing here stores such a count."""
    for killed in range(5):
        app.enqueue("work")
        hand(owner=f"killed {killed}").claim_one()
    tables.move_clock(LEASE + 1)
    hand(owner="rescuer").rescue()
    assert tables.states() == {"ready": 5}
    assert len(hand(owner="next").claim(5)) == 5


# -- tokens


def test_tokens_never_reset_whatever_is_deleted_or_replayed(
    app: Scheduler, tables: Tables, hand: Callable[..., Hand]
) -> None:
    """awa, db-scheduler, terp: reset on replay, replace, purge; StarRocks #12138: epoch = count() + 1."""
    app.enqueue("work")
    worker = hand()
    highest = worker.claim_one().token
    for sql in (
        "update {s}.job set status = 'ready', attempt = 0, token = null, owner = null",
        "delete from {s}.attempt",
        "delete from {s}.job",
        "truncate {s}.job, {s}.attempt, {s}.lease, {s}.occurrence",
    ):
        tables.tamper(sql)
        if not tables.jobs():
            app.enqueue("work")
        token = worker.claim_one().token
        assert token > highest, sql
        highest = token
        tables.rows("update {s}.job set status = 'ready'")


def test_tokens_start_high_and_stay_below_the_limit_of_a_double(
    app: Scheduler, tables: Tables, hand: Callable[..., Hand]
) -> None:
    app.enqueue("work")
    token = hand().claim_one().token
    milliseconds = tables.one("select extract(epoch from clock_timestamp() - '2025-01-01 UTC'::timestamptz) * 1000")
    assert float(milliseconds) * 2048 * 0.999 < token < 2**53
