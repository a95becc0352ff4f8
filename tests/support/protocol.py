"""The protocol as an explicit-state model: claim, lease, pause, reclaim, raise, write, settle, crash, failover.

Small enough to visit every state. Time is not modelled: whoever may act may also wait for as long as it likes, which
is what a pause, a slow network and an early expiry look like from outside. A request that was sent arrives at some
moment, perhaps after its sender gave up on it, asked again or died. What decides is the project's own:
:func:`fencing._law.judge` and the legal transitions of jobs.

A :class:`Variant` with a fault in it must have a state that breaks an invariant, or one from which the job can never
end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeVar

from fencing import Token
from fencing._law import Verdict, judge
from fencing.history import Event
from fencing.history import Kind as EventKind
from fencing.history import Outcome as EventOutcome
from scheduler._states import TRANSITIONS, State

Kind = Literal["raise", "check", "write", "settle"]


class Held(NamedTuple):
    """A claim as its holder knows it. ``order`` counts claims over everything that is lost: the model's own truth."""

    value: int
    lineage: int
    order: int

    @property
    def token(self) -> Token:
        return Token(self.value, "model", str(self.lineage))


class Job(NamedTuple):
    status: State
    holder: int | None
    held: Held | None


class Server(NamedTuple):
    """The scheduler's database: the job's row, and the issuer. ``moved``: its identity changed since the last claim."""

    job: Job
    last: int
    lineage: int
    moved: bool


class Worker(NamedTuple):
    """``step`` is its place in the handler; ``asked``: it waits for the answer to that step."""

    held: Held | None
    step: int
    asked: bool


class Request(NamedTuple):
    kind: Kind
    resource: int
    worker: int
    held: Held


class World(NamedTuple):
    """``newest`` is the order of the newest claim that each resource accepted, whatever became of its mark."""

    server: Server
    standby: Server | None
    workers: tuple[Worker, ...]
    marks: tuple[Held | None, ...]
    newest: tuple[int, ...]
    under_way: frozenset[Request]
    claims: int
    highest: int
    failovers: int
    broken: str


@dataclass(frozen=True)
class Variant:
    """The protocol, or one with a fault."""

    name: str = "as it is"
    seen: str = ""
    judges: bool = True
    strict: bool = False
    check_then_write: bool = False
    forgets_marks: bool = False
    floor: bool = True
    new_token_per_claim: bool = True
    settles_by_token: bool = True
    rescues_what_ended: bool = False
    raises: bool = True

    def handler(self, resources: int) -> tuple[tuple[Kind, int], ...]:
        """The steps of a handler: raise every fence, write everything, settle."""
        raised: list[tuple[Kind, int]] = [("raise", number) for number in range(resources)] if self.raises else []
        written: list[tuple[Kind, int]] = [
            (kind, number)
            for number in range(resources)
            for kind in (("check", "write") if self.check_then_write else ("write",))
        ]
        return (*raised, *written, ("settle", -1))


class Step(NamedTuple):
    """What leads from one world to the next, told for people; ``event`` is the same for the event record."""

    told: str
    event: tuple[EventKind, EventOutcome, str, str, str, Held | None] | None = None


@dataclass(frozen=True)
class Explored:
    """``story`` leads to the nearest broken world, else to one of the ``stuck``, from which the job cannot end."""

    worlds: int
    ended: int
    story: tuple[Step, ...]
    broken: str
    stuck: int


def explore(
    variant: Variant,
    workers: int = 2,
    resources: int = 2,
    failovers: int = 1,
    claims: int = 2,
    *,
    symmetric: bool = False,
) -> Explored:
    """Visit every world, nearest first, and stop at the first broken one.

    ``claims`` bounds how often the job is claimed in all. ``symmetric`` counts worlds that differ only in which worker
    is which as one; a story then changes their names on the way.
    """
    model = _Model(variant, workers, resources, claims)
    first = World(
        Server(Job("ready", None, None), 0, 0, False),
        None,
        (Worker(None, 0, False),) * workers,
        (None,) * resources,
        (0,) * resources,
        frozenset(),
        0,
        0,
        failovers,
        "",
    )
    came: dict[World, tuple[World, Step] | None] = {first: None}
    before: dict[World, list[World]] = {first: []}
    queue = deque([first])
    while queue:
        world = queue.popleft()
        for step, reached in model.steps(world):
            if symmetric:
                reached = _canonical(reached)
            if reached not in came:
                came[reached] = (world, step)
                before[reached] = []
                queue.append(reached)
                if reached.broken:
                    return Explored(len(came), 0, _story(came, reached), reached.broken, 0)
            before[reached].append(world)
    ends = [world for world in came if world.server.job.status == "completed"]
    live = set(ends)
    waiting = deque(ends)
    while waiting:
        for earlier in before[waiting.popleft()]:
            if earlier not in live:
                live.add(earlier)
                waiting.append(earlier)
    # Where the model's own bound on claims was met, nothing more can be said.
    stuck = [world for world in came if world not in live and world.claims < claims]
    return Explored(len(came), len(ends), _story(came, stuck[-1]) if stuck else (), "", len(stuck))


def _canonical(world: World) -> World:
    """Of worlds that differ only in which worker is which, one."""
    requests: list[list[tuple[Kind, int, Held]]] = [[] for _ in world.workers]
    for request in world.under_way:
        requests[request.worker].append((request.kind, request.resource, request.held))

    def key(number: int) -> tuple[object, ...]:
        worker = world.workers[number]
        holds = [server is not None and server.job.holder == number for server in (world.server, world.standby)]
        return (worker.held or (), worker.step, worker.asked, sorted(requests[number]), holds)

    order = sorted(range(len(world.workers)), key=key)
    place = {number: position for position, number in enumerate(order)}

    def moved(server: Server) -> Server:
        holder = server.job.holder
        return server._replace(job=server.job._replace(holder=None if holder is None else place[holder]))

    return world._replace(
        server=moved(world.server),
        standby=moved(world.standby) if world.standby is not None else None,
        workers=tuple(world.workers[number] for number in order),
        under_way=frozenset(request._replace(worker=place[request.worker]) for request in world.under_way),
    )


def _story(came: dict[World, tuple[World, Step] | None], world: World) -> tuple[Step, ...]:
    steps = []
    at = came[world]
    while at is not None:
        steps.append(at[1])
        at = came[at[0]]
    return tuple(reversed(steps))


class _Model:
    def __init__(self, variant: Variant, workers: int, resources: int, claims: int) -> None:
        self._variant = variant
        self._workers = range(workers)
        self._handler = variant.handler(resources)
        self._claims = claims

    def steps(self, world: World) -> Iterator[tuple[Step, World]]:
        """Everything that can happen next."""
        if world.server.job.status == "completed" and not world.under_way:
            return
        for worker in self._workers:
            yield from self._acts(world, worker)
        for request in world.under_way:
            yield from self._arrives(world, request)
        yield from self._server(world)

    def _acts(self, world: World, number: int) -> Iterator[tuple[Step, World]]:
        worker, name = world.workers[number], _name(number)
        if worker.held is None:
            if world.server.job.status == "ready" and world.claims < self._claims:
                yield self._claim(world, number)
            return
        kind, resource = self._handler[worker.step]
        if not worker.asked:
            request = Request(kind, resource, number, worker.held)
            told = f"{name} sends its {_words(kind, resource)} under {worker.held.value}"
            asked = world._replace(under_way=world.under_way | {request})
            yield Step(told), _with(asked, number, worker._replace(asked=True))
        else:
            yield Step(f"{name} gets no answer and will ask again"), _with(world, number, worker._replace(asked=False))
        yield Step(f"{name} is killed", ("kill", "done", name, "", "", None)), _with(world, number, _IDLE)

    def _claim(self, world: World, number: int) -> tuple[Step, World]:
        server, variant = world.server, self._variant
        last, lineage = server.last, server.lineage
        if server.moved and variant.floor:
            last, lineage = world.highest, lineage + 1  # the clock's floor: above everything issued before
        value = last + 1
        old = server.job.held
        if not variant.new_token_per_claim and old is not None:
            value = last
        held = Held(value, lineage, world.claims + 1)
        broken = world.broken
        if value <= world.highest and variant.new_token_per_claim:
            broken = f"the token {value} was given out before"
        taken = world._replace(
            server=Server(_changed(server.job, "leased", number, held), value, lineage, False),
            claims=world.claims + 1,
            highest=max(world.highest, value),
            broken=broken,
        )
        name = _name(number)
        told = f"{name} claims the job and gets {value}"
        return Step(told, ("claim", "done", name, "scheduler", "job", held)), _with(
            taken, number, Worker(held, 0, False)
        )

    def _arrives(self, world: World, request: Request) -> Iterator[tuple[Step, World]]:
        after = world._replace(under_way=world.under_way - {request})
        if request.kind == "settle":
            after, accepted = self._settles(after, request)
        else:
            after, accepted = self._reaches(after, request)
        name, held = _name(request.worker), request.held
        told = f"the {_words(request.kind, request.resource)} of {name} under {held.value} arrives and is "
        kind: EventKind = "write" if request.kind == "check" else request.kind
        place, what = ("scheduler", "job") if request.kind == "settle" else ("downstream", f"r{request.resource}")
        answer: EventOutcome = "accepted" if accepted else "refused"
        seen = None if request.kind == "check" else (kind, answer, name, place, what, held)
        step = Step(told + answer, seen)
        worker = after.workers[request.worker]
        waits = worker.asked and worker.held == held and self._handler[worker.step] == (request.kind, request.resource)
        if waits:
            ended = not accepted or worker.step + 1 == len(self._handler)
            after = _with(after, request.worker, _IDLE if ended else Worker(held, worker.step + 1, False))
        yield step, after

    def _settles(self, world: World, request: Request) -> tuple[World, bool]:
        server = world.server
        job = server.job
        fits = job.status == "leased" and (
            (job.held == request.held and job.holder == request.worker) or not self._variant.settles_by_token
        )
        if not fits:
            return world, job.status == "completed" and job.held == request.held
        broken = world.broken
        if job.held != request.held:
            broken = f"a settlement under {request.held.value} was accepted, though {_value(job.held)} holds the job"
        ended = server._replace(job=_changed(job, "completed", job.holder, job.held))
        return world._replace(server=ended, broken=broken), True

    def _reaches(self, world: World, request: Request) -> tuple[World, bool]:
        """A write, a raised fence or (in a faulty variant) a bare check arrives at a resource."""
        mark, held, variant = world.marks[request.resource], request.held, self._variant
        if (variant.check_then_write and request.kind == "write") or (not variant.judges and request.kind != "raise"):
            accepted = True
        else:
            verdict = verdict_of(mark, held)
            accepted = verdict.accepted and not (variant.strict and verdict is Verdict.REPEATED)
        if not accepted or request.kind == "check":
            return world, accepted
        broken, newest = world.broken, world.newest[request.resource]
        if newest > held.order:
            broken = f"a write of claim {held.order} was accepted after one of claim {newest}"
        if mark is None or verdict_of(mark, held) is Verdict.ADVANCED:
            mark = held
        return world._replace(
            marks=_put(world.marks, request.resource, mark),
            newest=_put(world.newest, request.resource, max(newest, held.order)),
            broken=broken,
        ), True

    def _server(self, world: World) -> Iterator[tuple[Step, World]]:
        server = world.server
        job = server.job
        if job.status == "leased" or (self._variant.rescues_what_ended and job.status == "completed"):
            broken = "" if job.status == "leased" else "a job that had ended is ready again"
            rescued = server._replace(job=job._replace(status="ready", holder=None))
            step = Step(
                "the lease runs out, and the job is taken back", ("rescue", "done", "", "scheduler", "job", job.held)
            )
            yield step, world._replace(server=rescued, broken=broken or world.broken)
        if world.failovers:
            if world.standby != server:
                yield Step("the standby catches up"), world._replace(standby=server)
            if world.standby is not None:
                promoted = world.standby._replace(moved=True)
                step = Step("the primary is lost and the standby promoted", ("note", "done", "", "", "", None))
                yield step, world._replace(server=promoted, standby=None, failovers=world.failovers - 1)
        if self._variant.forgets_marks and any(world.marks):
            yield Step("the downstream restarts without its marks"), world._replace(marks=(None,) * len(world.marks))


_IDLE = Worker(None, 0, False)

T = TypeVar("T")


def verdict_of(mark: Held | None, held: Held) -> Verdict:
    return judge(mark.token if mark else None, held.token)


def _put(items: tuple[T, ...], place: int, item: T) -> tuple[T, ...]:
    return (*items[:place], item, *items[place + 1 :])


def _changed(job: Job, status: State, holder: int | None, held: Held | None) -> Job:
    assert (job.status, status) in TRANSITIONS, f"{job.status} → {status} is no legal transition"
    return Job(status, holder, held)


def _with(world: World, number: int, worker: Worker) -> World:
    return world._replace(workers=_put(world.workers, number, worker))


def _name(number: int) -> str:
    return f"worker {'ABC'[number]}"


def _words(kind: Kind, resource: int) -> str:
    return "settlement" if kind == "settle" else f"{'raised fence' if kind == 'raise' else kind} of r{resource}"


def _value(held: Held | None) -> int:
    return held.value if held is not None else 0


def events_of(story: tuple[Step, ...]) -> list[Event]:
    """The story as an event record."""
    events = []
    for moment, step in enumerate(story):
        if step.event is not None:
            kind, outcome, actor, place, what, held = step.event
            token = str(held.token) if held is not None else ""
            resources = (what,) if what else ()
            began = 2 * moment + 1
            detail = step.told if kind == "note" else "completed" if kind == "settle" else ""
            events.append(
                Event(
                    kind,
                    outcome,
                    actor,
                    place,
                    resources,
                    token,
                    detail=detail,
                    began=began,
                    ended=began + 1,
                    wall=1,
                    pid=1,
                )
            )
    return events
