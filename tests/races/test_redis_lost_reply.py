"""Lost requests and replies, lost by a proxy at the moment that matters: nothing applied twice, nothing guessed."""

from __future__ import annotations

import contextlib
import copy
import os
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from support.proxy import Proxy
from support.redis_calls import Asyncio, Blocking, Calls, token

from adapters.redis import RedisGuard
from adapters.redis._places import Node
from fencing import errors, fenced_write, raise_fence, read_mark
from fencing.errors import FencingError
from fencing.history import Event, subscribe

SCRIPT = b"EVALSHA"
WAIT = b"$4\r\nWAIT\r\n"


@pytest.fixture
def proxy(valkey_url: str) -> Iterator[Proxy]:
    with Proxy(int(valkey_url.rpartition(":")[2].partition("/")[0])) as made:
        yield made


@pytest.fixture
def plain(valkey_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(valkey_url) as client:
        raise_fence(client, "a", token=token(5))  # the script is known from here on: a first try is the write itself
        age(client)
        yield client


def age(client: redis.Redis) -> None:
    """Make the mark a minute old: on a busy machine nobody can say that it was there before a write soon after."""
    client.hincrby("fencing:{a}:mark", "at", -60_000_000)


@pytest.fixture(params=["blocking", "asyncio"])
def calls(request: pytest.FixtureRequest, proxy: Proxy, plain: redis.Redis) -> Iterator[Calls]:
    with contextlib.closing(_make(request.param, proxy.url)) as made:
        yield made


def _make(kind: str, url: str, **options: Any) -> Any:
    return Blocking(url, **options) if kind == "blocking" else Asyncio(url, **options)


def increment(calls: Calls, value: int = 5) -> Any:
    return calls.write(lambda r: r.incr("n"), "a", token=token(value))


def test_a_lost_reply_is_asked_for_again_and_nothing_is_applied_twice(
    calls: Calls, proxy: Proxy, plain: redis.Redis
) -> None:
    proxy.lose_reply(SCRIPT)
    assert increment(calls).value == 1
    assert proxy.seen == 2
    assert plain.get("n") == b"1"
    assert increment(calls).value == 2


@pytest.mark.parametrize(
    ("record", "value"),
    [
        (lambda r: r.set("n", "x"), True),
        (lambda r: r.set("n", "x", xx=True), None),
        (lambda r: r.ping(), True),
        (lambda r: r.get("text"), b"words"),
        (lambda r: r.mget("text", "none"), [b"words", None]),
        (lambda r: r.hgetall("empty"), {}),
    ],
    ids=["OK", "nothing", "PONG", "text", "list", "empty"],
)
def test_a_reply_of_each_shape_comes_again_as_it_was(
    calls: Calls, proxy: Proxy, plain: redis.Redis, record: Any, value: Any
) -> None:
    plain.set("text", "words")
    proxy.lose_reply(SCRIPT)
    assert calls.write(record, "a", token=token(5)).value == value
    assert proxy.seen == 2


def test_a_failed_command_is_told_though_the_replies_were_too_large_to_keep(
    calls: Calls, proxy: Proxy, plain: redis.Redis
) -> None:
    plain.set("text", "x" * 2000)
    replies: list[Any] = []

    def body(r: Any) -> None:
        replies.extend((r.get("text"), r.incr("text"), r.set("after", 1)))

    proxy.lose_reply(SCRIPT)
    with pytest.raises(errors.EffectError, match="not an integer") as caught:
        calls.write(body, "a", token=token(5))
    assert (caught.value.index, proxy.seen, plain.get("after")) == (1, 2, None)
    with pytest.raises(errors.OutcomeUnknownError, match="too large"):
        _ = replies[0].value
    with pytest.raises(errors.EffectError):
        _ = replies[1].value
    with pytest.raises(FencingError, match="was not executed"):
        _ = replies[2].value


def test_a_fence_whose_reply_was_lost_says_that_it_was_shown_twice_when_somebody_else_came_between(
    proxy: Proxy, plain: redis.Redis
) -> None:
    events: list[Event] = []
    forget = subscribe(events.append)
    proxy.lose_reply(SCRIPT, then=lambda: raise_fence(plain, "a", token=token(7)))
    with redis.Redis.from_url(proxy.url) as client, pytest.raises(errors.StaleTokenError) as caught:
        raise_fence(client, "a", token=token(6))
    forget()
    assert (caught.value.asked_again, proxy.seen) == (True, 2)
    assert [(event.outcome, event.detail) for event in events] == [("accepted", ""), ("refused", "asked again")]
    with pytest.raises(errors.StaleTokenError) as caught:
        raise_fence(plain, "a", token=token(6))
    assert not caught.value.asked_again


def test_an_adoption_that_was_undone_before_it_is_repeated_is_unknown(proxy: Proxy, plain: redis.Redis) -> None:
    """Asked again, it would take the resource from who has it by then."""

    def back() -> None:
        RedisGuard(plain).adopt("a", token(6), reason="no", actor="Bob")

    with redis.Redis.from_url(proxy.url) as client:
        proxy.lose_reply(SCRIPT, then=back)
        with pytest.raises(errors.OutcomeUnknownError):
            RedisGuard(client).adopt("a", token(3, "etcd"), reason="moved", actor="Ann")
        assert (read_mark(plain, "a").token, proxy.seen) == (token(6), 2)
        age(plain)
        for lose in (proxy.lose_reply, proxy.lose_request):  # and with nobody between, it is found done, or done
            lose(SCRIPT)
            RedisGuard(client).adopt("a", token(3, "etcd"), reason="moved", actor="Ann")
            assert read_mark(plain, "a").token == token(3, "etcd")
            back()
            age(plain)


def test_a_lost_request_is_sent_again(calls: Calls, proxy: Proxy, plain: redis.Redis) -> None:
    proxy.lose_request(SCRIPT)
    assert increment(calls).value == 1
    assert proxy.seen == 2
    assert plain.get("n") == b"1"


def test_request_and_reply_lost_in_turn(calls: Calls, proxy: Proxy, plain: redis.Redis) -> None:
    proxy.lose_request(SCRIPT)
    proxy.lose_reply(SCRIPT)
    assert increment(calls).value == 1
    assert plain.get("n") == b"1"


def test_a_reply_that_stays_lost_is_unknown_and_applied_once(calls: Calls, proxy: Proxy, plain: redis.Redis) -> None:
    proxy.lose_reply(SCRIPT, times=20)
    with pytest.raises(errors.OutcomeUnknownError) as caught:
        increment(calls)
    assert caught.value.__cause__ is not None
    assert (caught.value.resource, caught.value.presented) == ("a", token(5))
    assert caught.value.downstream == f"redis:127.0.0.1:{proxy.port}/0"
    assert 2 <= proxy.seen <= 5, "asked again a few times, not for ever"
    assert plain.get("n") == b"1"


def test_a_request_that_stays_lost_is_unknown_too(calls: Calls, proxy: Proxy, plain: redis.Redis) -> None:
    proxy.lose_request(SCRIPT, times=20)
    with pytest.raises(errors.OutcomeUnknownError):
        increment(calls)
    assert plain.get("n") is None


def test_a_timeout_is_unknown_not_a_failure(
    request: pytest.FixtureRequest, proxy: Proxy, plain: redis.Redis, calls: Calls
) -> None:
    kind = "asyncio" if isinstance(calls, Asyncio) else "blocking"
    with contextlib.closing(_make(kind, proxy.url, client={"socket_timeout": 0.2})) as impatient:
        proxy.silence(SCRIPT, times=20)
        with pytest.raises(errors.OutcomeUnknownError):
            increment(impatient)
        assert plain.get("n") == b"1"


def test_a_reply_that_came_too_late_is_found_by_asking_again(proxy: Proxy, plain: redis.Redis) -> None:
    impatient = Blocking(proxy.url, client={"socket_timeout": 0.2})
    proxy.silence(SCRIPT)
    assert increment(impatient).value == 1
    assert plain.get("n") == b"1"


def test_a_token_superseded_before_the_question_is_repeated_is_unknown(
    calls: Calls, proxy: Proxy, plain: redis.Redis
) -> None:
    proxy.lose_reply(SCRIPT, then=lambda: raise_fence(plain, "a", token=token(6)))
    with pytest.raises(errors.OutcomeUnknownError) as caught:
        increment(calls)
    assert "stale" in str(caught.value)
    assert plain.get("n") == b"1"
    with pytest.raises(errors.StaleTokenError):
        increment(calls)
    assert plain.get("n") == b"1"


def test_a_lost_request_of_a_token_superseded_meanwhile_is_unknown_and_not_applied(
    calls: Calls, proxy: Proxy, plain: redis.Redis
) -> None:
    # The writer cannot know which of the two it was: see the test above.
    proxy.lose_request(SCRIPT, then=lambda: raise_fence(plain, "a", token=token(6)))
    with pytest.raises(errors.OutcomeUnknownError):
        increment(calls)
    assert plain.get("n") is None


def test_a_refusal_whose_reply_was_lost_stays_a_refusal_where_nothing_was_to_be_executed(
    calls: Calls, proxy: Proxy, plain: redis.Redis
) -> None:
    raise_fence(plain, "a", token=token(9))
    proxy.lose_reply(SCRIPT)
    with pytest.raises(errors.StaleTokenError):
        calls.raise_fence("a", token=token(8))
    proxy.lose_reply(SCRIPT)
    with pytest.raises(errors.StaleTokenError):
        calls.write(lambda r: None, "a", token=token(8))


def test_a_raise_whose_reply_was_lost_is_raised(calls: Calls, proxy: Proxy, plain: redis.Redis) -> None:
    proxy.lose_reply(SCRIPT)
    calls.raise_fence("a", "new", token=token(6))
    mark = calls.read_mark("new")
    assert mark is not None
    assert mark.token == token(6)


def test_a_mark_lost_before_the_question_is_repeated_is_unknown_even_under_create(
    proxy: Proxy, plain: redis.Redis
) -> None:
    calls = Blocking(proxy.url, on_missing="create")

    def forget_the_mark() -> None:
        plain.delete("fencing:{a}:mark")

    proxy.lose_reply(SCRIPT, then=forget_the_mark)
    with pytest.raises(errors.OutcomeUnknownError):
        increment(calls)
    assert plain.get("n") == b"1"


@pytest.mark.parametrize("value", [5, 4])
def test_a_mark_lost_and_raised_again_before_the_question_is_repeated_is_unknown(
    proxy: Proxy, plain: redis.Redis, value: int
) -> None:
    """The new mark knows nothing of the write: not that it was applied, and not that it was not."""
    calls = Blocking(proxy.url)
    increment(calls)

    def lose_the_mark() -> None:
        plain.delete("fencing:{a}:mark")
        raise_fence(plain, "a", token=token(value))

    proxy.lose_reply(SCRIPT, then=lose_the_mark)
    with pytest.raises(errors.OutcomeUnknownError, match="forgotten"):
        increment(calls)
    assert plain.get("n") == b"2"
    assert increment(calls).value == 3, "the next write is a new one"


def test_a_mark_lost_and_raised_again_while_the_question_is_repeated_slowly_is_unknown(
    calls: Calls, proxy: Proxy, plain: redis.Redis
) -> None:
    """However long the repeated write is on its way: longer here than the first one was ago when it was sent."""
    began = time.monotonic()
    increment(calls)

    def lose_the_mark() -> None:
        plain.delete("fencing:{a}:mark")
        raise_fence(plain, "a", token=token(4))
        time.sleep(time.monotonic() - began)

    proxy.lose_reply(SCRIPT)
    proxy.delay(SCRIPT, lose_the_mark)
    with pytest.raises(errors.OutcomeUnknownError, match="forgotten"):
        increment(calls)
    assert plain.get("n") == b"2"


def test_a_mark_lost_and_raised_again_while_the_client_slept_is_unknown(
    calls: Calls, proxy: Proxy, plain: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The monotonic clock stands still while a machine is suspended, and with it the age of the first sending."""
    increment(calls)

    def lose_the_mark() -> None:
        plain.delete("fencing:{a}:mark")
        raise_fence(plain, "a", token=token(4))

    slept_from = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: slept_from)
    proxy.lose_reply(SCRIPT, then=lose_the_mark)
    with pytest.raises(errors.OutcomeUnknownError, match="forgotten"):
        increment(calls)
    assert plain.get("n") == b"2"


def many_writers(plain: redis.Redis, count: int) -> None:
    """As many processes or threads as that write once each under the same token."""
    for _ in range(count):
        with fenced_write(RedisGuard(plain), "a", token=token(5)) as r:
            r.set("other", 1)


def test_a_write_is_remembered_while_a_thousand_others_write(proxy: Proxy, plain: redis.Redis) -> None:
    calls = Blocking(proxy.url)
    increment(calls)
    proxy.lose_reply(SCRIPT, then=lambda: many_writers(plain, 1000))
    assert increment(calls).value == 2
    assert plain.get("n") == b"2"


def test_a_write_that_is_no_longer_remembered_is_unknown_and_not_applied_again(
    proxy: Proxy, plain: redis.Redis
) -> None:
    calls = Blocking(proxy.url)
    increment(calls)
    proxy.lose_reply(SCRIPT, then=lambda: many_writers(plain, 1100))
    with pytest.raises(errors.OutcomeUnknownError, match="forgotten"):
        increment(calls)
    assert plain.get("n") == b"2"
    # A first try is not taken for a repeated one, and what comes after is remembered as ever.
    proxy.lose_reply(SCRIPT)
    assert increment(calls).value == 3
    proxy.lose_request(SCRIPT)
    assert increment(calls).value == 4
    assert plain.get("n") == b"4"
    assert plain.hlen("fencing:{a}:mark") < 1100, "a mark does not grow with its writers for ever"


def test_a_repeated_write_is_judged_by_what_was_known_when_it_was_first_sent(proxy: Proxy, plain: redis.Redis) -> None:
    """Another thread of the same guard may hear meanwhile that the mark has forgotten its writers."""
    client = redis.Redis.from_url(proxy.url)
    guard = RedisGuard(client)

    def increment() -> None:
        with fenced_write(guard, "a", token=token(5)) as r:
            r.incr("n")

    def forget_and_let_another_thread_hear_of_it() -> None:
        many_writers(plain, 1100)
        with fenced_write(guard, "a", token=token(5)) as r:
            r.set("other", 2)

    proxy.lose_reply(SCRIPT, then=forget_and_let_another_thread_hear_of_it)
    with pytest.raises(errors.OutcomeUnknownError, match="forgotten"):
        increment()
    assert plain.get("n") == b"1"
    client.close()


def test_what_was_known_of_a_lost_primary_is_not_taken_for_knowledge_of_the_next_one(
    proxy: Proxy, plain: redis.Redis
) -> None:
    """A replica that had not heard that the mark forgot its writers forgets them itself: no generation comes twice."""
    client = redis.Redis.from_url(proxy.url)
    guard = RedisGuard(client)

    def increment() -> None:
        with fenced_write(guard, "a", token=token(5)) as r:
            r.incr("n")

    increment()
    behind = plain.dump("fencing:{a}:mark")
    many_writers(plain, 1100)
    heard = int(plain.hget("fencing:{a}:mark", "generation") or 0)
    plain.restore("fencing:{a}:mark", 0, behind, replace=True)
    guard._terms.writers.heard("a", token(5), heard)  # as another thread of the guard has, of the primary before
    proxy.lose_reply(SCRIPT, then=lambda: many_writers(plain, 1100))
    with pytest.raises(errors.OutcomeUnknownError, match="forgotten"):
        increment()
    assert plain.get("n") == b"2"
    client.close()


def test_a_first_try_under_a_mark_that_has_forgotten_its_writers_goes_through(plain: redis.Redis) -> None:
    many_writers(plain, 1100)
    assert increment(Blocking(plain_url(plain))).value == 1


def test_a_mark_does_not_grow_with_its_writes(proxy: Proxy, plain: redis.Redis) -> None:
    calls = Blocking(proxy.url)
    for _ in range(300):
        increment(calls)
    assert plain.hlen("fencing:{a}:mark") == 4
    proxy.lose_request(SCRIPT)
    assert increment(calls).value == 301
    proxy.lose_reply(SCRIPT)
    assert increment(calls).value == 302
    assert plain.get("n") == b"302"


def test_what_is_remembered_of_a_token_goes_with_it(plain: redis.Redis) -> None:
    many_writers(plain, 100)
    raise_fence(plain, "a", token=token(6))
    assert plain.hlen("fencing:{a}:mark") == 3


def test_a_copy_of_a_request_that_arrives_late_is_not_applied(plain: redis.Redis) -> None:
    """The bytes of a first try may reach the server after everything else: something on the way held them back."""
    with Proxy(plain.get_connection_kwargs()["port"]) as proxy:
        recorded: list[bytes] = []
        original = proxy._next_loss

        def remember(request: bytes) -> Any:
            if SCRIPT in request:
                recorded.append(request)
            return original(request)

        proxy._next_loss = remember  # type: ignore[method-assign]
        calls = Blocking(proxy.url)
        increment(calls)
        first = recorded[0]

        def replay() -> None:
            connection = plain.connection_pool.get_connection()
            connection.send_packed_command([first])
            connection.read_response()
            plain.connection_pool.release(connection)

        replay()
        assert plain.get("n") == b"1", "right after it"
        increment(calls)
        replay()
        assert plain.get("n") == b"2", "after its writer's next write"
        many_writers(plain, 1100)
        replay()
        assert plain.get("n") == b"2", "after the mark has forgotten its writer"
        raise_fence(plain, "a", token=token(6))
        replay()
        assert plain.get("n") == b"2", "after its token was superseded"


def test_a_forked_process_is_another_writer(plain: redis.Redis) -> None:
    guard = RedisGuard(redis.Redis.from_url(plain_url(plain)))

    def write() -> int:
        with fenced_write(guard, "a", token=token(5)) as r:
            reply = r.incr("n")
        value: int = reply.value
        return value

    assert write() == 1
    child = os.fork()
    if child == 0:
        os._exit(write() if write() == 2 else 99)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    assert [write(), write()] == [4, 5]
    keys: list[bytes] = plain.hkeys("fencing:{a}:mark")  # type: ignore[assignment]
    assert len([key for key in keys if key.startswith(b"writer:")]) == 2


def test_a_copied_process_loses_no_write_to_its_original(plain: redis.Redis) -> None:
    """A restored snapshot goes on with the same numbers: its writes are new ones all the same."""
    original, restored = RedisGuard(plain), RedisGuard(plain)

    def write(guard: RedisGuard) -> int:
        with fenced_write(guard, "a", token=token(5)) as r:
            reply = r.incr("n")
        value: int = reply.value
        return value

    assert write(original) == 1
    restored._terms.writers._idle = copy.deepcopy(original._terms.writers._idle)
    assert [write(original), write(restored), write(original), write(restored), write(original)] == [2, 3, 4, 5, 6]


def test_large_replies_are_not_kept_and_say_so(calls: Calls, proxy: Proxy, plain: redis.Redis) -> None:
    plain.set("big", b"x" * 5000)
    proxy.lose_reply(SCRIPT)
    with_both = calls.write(lambda r: (r.incr("n"), r.get("big")), "a", token=token(5))
    for reply in with_both:
        with pytest.raises(errors.OutcomeUnknownError, match="executed once"):
            _ = reply.value
    assert plain.get("n") == b"1"


def test_an_effect_that_failed_is_not_executed_again(calls: Calls, proxy: Proxy, plain: redis.Redis) -> None:
    plain.set("text", "no number")
    proxy.lose_reply(SCRIPT)
    with pytest.raises(errors.EffectError) as caught:
        calls.write(lambda r: (r.incr("n"), r.incr("text"), r.incr("n")), "a", token=token(5))
    assert caught.value.index == 1
    assert proxy.seen == 2
    assert plain.get("n") == b"1"


@pytest.mark.parametrize("retries", [0, 3, None])
def test_the_clients_own_retries_neither_repeat_a_write_nor_are_changed(
    proxy: Proxy, plain: redis.Redis, retries: int | None
) -> None:
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    own: dict[str, Any] = {} if retries is None else {"retry": Retry(NoBackoff(), retries)}
    client = redis.Redis.from_url(proxy.url, **own)
    before = repr(client.get_connection_kwargs()), client.get_retry()
    proxy.lose_reply(SCRIPT, times=20)
    with pytest.raises(FencingError), fenced_write(client, "a", token=token(5)) as r:
        r.incr("n")
    assert proxy.seen <= 5
    assert plain.get("n") == b"1"
    assert (repr(client.get_connection_kwargs()), client.get_retry()) == before


def test_a_server_that_cannot_be_reached_is_contention_since_nothing_was_sent(proxy: Proxy, plain: redis.Redis) -> None:
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    calls = Blocking(proxy.url, client={"retry": Retry(NoBackoff(), 0)})
    proxy.close()
    with pytest.raises(errors.ContentionError, match="nothing was sent"):
        increment(calls)
    with pytest.raises(errors.ContentionError):
        calls.read_mark("a")


def test_reading_a_mark_survives_a_lost_reply(calls: Calls, proxy: Proxy) -> None:
    proxy.lose_reply(b"HMGET")
    mark = calls.read_mark("a")
    assert mark is not None
    assert mark.token == token(5)


def plain_url(client: redis.Redis) -> str:
    return f"redis://127.0.0.1:{client.get_connection_kwargs()['port']}/0"


def test_a_connection_that_breaks_as_it_is_pointed_to_goes_back_to_its_pool(proxy: Proxy, plain: redis.Redis) -> None:
    """``ASK`` of a cluster: what is said there first, ``ASKING``, may be lost too."""
    pool = redis.BlockingConnectionPool.from_url(proxy.url, max_connections=1, timeout=0)
    manager = SimpleNamespace(get_node=lambda host, port: (host, port))
    client = SimpleNamespace(nodes_manager=manager, get_redis_connection=lambda node: redis.Redis(connection_pool=pool))
    proxy.lose_request(b"ASKING")
    with pytest.raises(redis.ConnectionError):
        Node(client, 0).follow(redis.exceptions.AskError(f"1 127.0.0.1:{proxy.port}"))
    pool.release(pool.get_connection())
    pool.disconnect()
