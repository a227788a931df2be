"""The law of effects: random programs with handlers, `finally` and compensations crash, are edited and are resumed.

The ledger that they leave behind equals that of some uninterrupted run of the final code, and no effect that is to happen
at most once is in it twice. The oracle is a plain Python interpretation of the program; it knows nothing of the engine.
A failure that the program handled before it was mended is history: the oracle may have met it, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections import Counter
from collections.abc import Collection, Generator, Iterator
from typing import Any

import attrs
import pytest
from crashing import CrashingStore, SimulatedCrash
from hypothesis import HealthCheck, Phase, event, example, given, settings
from hypothesis import strategies as st

from flowckpt import MemoryCheckpointStore, RunOptions, WorkflowEngine, in_sync, step, workflow
from flowckpt.engine.rules.plan import Decision, ResumePlan
from flowckpt.errors import StaleStepError, StepFailedError, StepInDoubtError

# --- programs, and what they mean ---------------------------------------------------------------------------------------


@attrs.frozen
class Do:
    """A step: it fails, or has an effect. Kinds: `plain`, `once` (at most once), `undo` (with a compensation)."""

    name: str
    kind: str
    amount: int = 0


@attrs.frozen
class Try:
    """`try: body; except: handler (and raise); finally: last`; without a handler, the failure goes through."""

    body: tuple[Any, ...]
    handler: tuple[Any, ...] | None
    reraises: bool
    last: tuple[Any, ...]


Block = tuple[Any, ...]
Effect = tuple[str, int]


def steps_of(block: Block) -> Iterator[Do]:
    for each in block:
        if isinstance(each, Do):
            yield each
        else:
            yield from steps_of(each.body)
            yield from steps_of(each.handler or ())
            yield from steps_of(each.last)


def with_step(block: Block, name: str, **changes: Any) -> Block:
    made: list[Any] = []
    for each in block:
        if isinstance(each, Do):
            made.append(attrs.evolve(each, **changes) if each.name == name else each)
        else:
            handler = None if each.handler is None else with_step(each.handler, name, **changes)
            body, last = with_step(each.body, name, **changes), with_step(each.last, name, **changes)
            made.append(Try(body, handler, each.reraises, last))
    return tuple(made)


class Failed(Exception):
    pass


def interpreted(program: Block, fails: Collection[str]) -> list[Effect]:
    """Return the ledger of an uninterrupted run in plain Python."""
    ledger: list[Effect] = []
    to_undo: list[Effect] = []

    def run(block: Block) -> None:
        for each in block:
            if isinstance(each, Do):
                if each.name in fails:
                    raise Failed(each.name)
                ledger.append((each.name, each.amount))
                if each.kind == "undo":
                    to_undo.append((each.name, each.amount))
                continue
            try:
                run(each.body)
            except Failed:
                if each.handler is None:
                    raise
                run(each.handler)
                if each.reraises:
                    raise
            finally:
                run(each.last)

    try:
        run(program)
    except Failed:
        for effect in reversed(to_undo):
            ledger.remove(effect)
    return sorted(ledger)


@attrs.define
class World:
    """The ledger, which every process sees, and which steps fail now."""

    ledger: list[Effect] = attrs.field(factory=list)
    fails: set[str] = attrs.field(factory=set)
    failed: set[str] = attrs.field(factory=set)
    ran: list[str] = attrs.field(factory=list)
    connection: Any = attrs.field(factory=threading.Lock)  # so that the world is never compared as an argument

    def do(self, name: str, kind: str, amount: int) -> int:
        self.ran.append(name)
        if name in self.fails:
            self.failed.add(name)
            raise ValueError(name)
        if kind == "once" or (name, amount) not in self.ledger:  # plain steps can be repeated, as they must be
            self.ledger.append((name, amount))
        return amount

    def flow(self, program: Block) -> Any:
        def undo_of(each: Do) -> Any:
            def undo(amount: int) -> None:
                if (each.name, amount) in self.ledger:
                    self.ledger.remove((each.name, amount))

            return undo

        def block(statements: Block) -> Generator[Any, Any, None]:
            for each in statements:
                if isinstance(each, Do):
                    made = step(each.name).python(self.do, each.name, each.kind, each.amount)
                    if each.kind == "once":
                        made = made.at_most_once()
                    elif each.kind == "undo":
                        made = made.rollback(undo_of(each)).checkpoint()
                    elif len(each.name) % 2:
                        made = made.checkpoint()
                    yield made
                    continue
                try:
                    yield from block(each.body)
                except StepFailedError:
                    if each.handler is None:
                        raise
                    yield from block(each.handler)
                    if each.reraises:
                        raise
                finally:
                    yield from block(each.last)

        @workflow(name="law")
        def law() -> Generator[Any, Any, None]:
            yield from block(program)

        return law


# --- random ones --------------------------------------------------------------------------------------------------------


@st.composite
def programs(draw: st.DrawFn) -> Block:
    numbers = itertools.count()
    has_undo = draw(st.booleans())

    def a_step(is_handler: bool) -> Do:
        kinds = ["undo"] if is_handler and has_undo else ["plain", "once", *["undo"] * has_undo]
        return Do(f"{'s' * (1 + draw(st.integers(0, 1)))}{next(numbers)}", draw(st.sampled_from(kinds)))

    def a_block(depth: int, most: int, is_handler: bool, least: int = 0) -> Block:
        made: list[Any] = []
        for _ in range(draw(st.integers(least, most))):
            if depth and draw(st.integers(0, 2)) == 0:
                body = a_block(depth - 1, 3, is_handler, 1)
                handler = a_block(depth - 1, 2, True) if draw(st.booleans()) else None
                # What follows a failure in `finally` is dropped with it, if that is undone and tried again.
                made.append(Try(body, handler, draw(st.booleans()), a_block(0, 1, is_handler)))
            else:
                made.append(a_step(is_handler))
        return tuple(made)

    return a_block(2, 4, False, 1)


@attrs.frozen
class Round:
    """What happens before a resume, and in it."""

    mends: tuple[int, ...] = ()
    appends: bool = False
    edits: int | None = None
    crash: int | None = None
    is_after: bool = True


rounds = st.lists(
    st.builds(
        Round,
        st.lists(st.integers(0, 9), max_size=2).map(tuple),
        st.booleans(),
        st.one_of(st.none(), st.integers(0, 9)),
        st.one_of(st.none(), st.integers(1, 8)),
        st.booleans(),
    ),
    max_size=3,
)


@attrs.define
class Case:
    """One run of a program, and the person who answers its questions truthfully."""

    program: Block
    world: World
    store: Any = attrs.field(factory=MemoryCheckpointStore)
    answers: dict[str, Any] = attrs.field(factory=dict)

    def recorded(self) -> set[str]:
        latest = asyncio.run(self.store.load_latest("run"))
        if latest is None:
            return set()
        kept = {each["path"] if isinstance(each, dict) else each.path for each in latest.metadata.get("superseded", ())}
        return {each.path for each in latest.step_results} | {*latest.in_flight} | kept

    def started(self, crash: int | None, is_after: bool) -> None:
        store = CrashingStore(self.store, crash or 10**9, is_after=is_after)
        with contextlib.suppress(SimulatedCrash):
            WorkflowEngine(store).run_sync(self.world.flow(self.program), workflow_id="run")

    def resumed(self, crash: int | None = None, is_after: bool = True) -> Any:
        """Resume as often as there are questions; return how that ended, or None after a crash."""
        chosen: dict[str, Any] = {}
        for _ in range(60):
            self.store.runs.owned.clear()  # the process that owned it is gone
            store = CrashingStore(self.store, crash or 10**9, is_after=is_after)
            flow, options = self.world.flow(self.program), RunOptions(**chosen)
            plan = in_sync(WorkflowEngine(self.store)).plan(flow, workflow_id="run", options=options)
            self.world.ran.clear()
            question: Exception | None = None
            try:
                result = WorkflowEngine(store).resume_sync(flow, workflow_id="run", options=options)
                question = result.error if isinstance(result.error, StepInDoubtError | StaleStepError) else None
            except SimulatedCrash:
                check(plan, self.world.ran, is_whole=False)
                return None
            except (StepInDoubtError, StaleStepError) as error:
                question = error
            check(plan, self.world.ran, is_whole=question is None)
            assert question is not None or not plan.stops or plan.is_undoing
            if question is None:
                return result
            chosen = self.answer(question)
        raise AssertionError("there is no end of questions")

    def answer(self, question: StepInDoubtError | StaleStepError) -> dict[str, Any]:
        event(f"asked: {type(question).__name__}")
        (asked,) = [each for each in steps_of(self.program) if each.name == question.path]
        is_done = (asked.name, asked.amount) in self.world.ledger
        if isinstance(question, StaleStepError):
            return {"on_stale": "reuse" if is_done else "rerun"}
        return {"done": {asked.name: asked.amount}} if is_done else {"not_done": [asked.name]}


def check(plan: ResumePlan, ran: list[str], *, is_whole: bool) -> None:
    """The plan is the resume, also of a run that has finished, that handled a failure, or that is being undone."""
    if plan.handled is not None or plan.is_nothing_to_do or plan.is_undoing:
        event("handled" if plan.handled else "undoing" if plan.is_undoing else "nothing to do")
        assert ran == [], plan
    for name in ran:
        planned = plan.step(name)
        assert planned is None or planned.decision is not Decision.REUSE or planned.assumes, (plan, ran)
    runs = (Decision.RERUN, Decision.NEW, Decision.INTERRUPTED)
    first = next((each for each in plan.steps if each.decision is not Decision.REUSE), None)
    if is_whole and first is not None and first.decision in runs:
        assert ran[:1] == [first.path], (plan, ran)


def law(program: Block, fails: set[int], first: Round, later: list[Round]) -> None:
    names = [each.name for each in steps_of(program)]
    world = World(fails={names[index] for index in fails if index < len(names)})
    case = Case(program, world)
    case.started(first.crash, first.is_after)
    if asyncio.run(case.store.load_latest("run")) is None:
        return
    ever_failed: set[str] = set()
    for number, each in enumerate(later):
        ever_failed |= world.failed
        names = [one.name for one in steps_of(case.program)]
        world.fails -= {names[index] for index in each.mends if index < len(names)}
        if each.appends:
            case.program = (*case.program, Do(f"more{number}", "once"))
        if each.edits is not None and each.edits < len(names):
            name = names[each.edits]
            (edited,) = [one for one in steps_of(case.program) if one.name == name]
            if name not in case.recorded():
                if (name, edited.amount) not in world.ledger:  # else it was begun by a process that died
                    case.program = with_step(case.program, name, amount=edited.amount + 1)
            elif edited.kind != "plain" and (name, edited.amount) in world.ledger:
                refused_edit(case, edited)
        case.resumed(each.crash, each.is_after)
    result = case.resumed()
    while result is None or case_moves(case, result):
        result = case.resumed()
    ever_failed |= world.failed
    once = {each.name for each in steps_of(case.program) if each.kind == "once"}
    twice = [effect for effect, count in Counter(world.ledger).items() if count > 1 and effect[0] in once]
    assert twice == []
    history = sorted(ever_failed - world.fails)
    possible = [
        interpreted(case.program, world.fails | {*some})
        for size in range(len(history) + 1)
        for some in itertools.combinations(history, size)
    ]
    event(f"ended {result.status}")
    assert sorted(world.ledger) in possible, (world.ledger, possible)


def case_moves(case: Case, result: Any) -> bool:
    """Return whether one more resume did something: a resume that only finishes a rollback leaves the rest to the next."""
    latest = asyncio.run(case.store.load_latest("run"))
    before = (latest.attempt, len(latest.step_results))
    again = case.resumed()
    latest = asyncio.run(case.store.load_latest("run"))
    return (
        again is None
        or (again.status != result.status)
        or (result.status == "completed" and (latest.attempt, len(latest.step_results)) != before)
    )


def refused_edit(case: Case, edited: Do) -> None:
    """Edit a guarded step that was done: no default repeats its effect, and with the code restored the run continues."""
    event("edited what was done")
    before = list(case.world.ledger)
    latest = asyncio.run(case.store.load_latest("run"))
    done = {each.path for each in latest.step_results if each.success}
    if edited.name not in done or latest.status == "failed" or "rolling_back" in latest.metadata:
        return  # it was undone, or the resume does nothing but undo
    kept, case.program = case.program, with_step(case.program, edited.name, amount=edited.amount + 1)
    case.store.runs.owned.clear()
    for options in (RunOptions(), RunOptions(reuse="inputs")):
        with contextlib.suppress(StepInDoubtError), pytest.raises(StaleStepError):
            WorkflowEngine(case.store).resume_sync(case.world.flow(case.program), workflow_id="run", options=options)
    assert case.world.ledger == before
    case.program = kept


CASES = st.tuples(
    programs(),
    st.sets(st.integers(0, 9), max_size=3),
    st.builds(Round, crash=st.one_of(st.none(), st.integers(1, 12)), is_after=st.booleans()),
    rounds,
)
UNHURRIED: dict[str, Any] = {
    "phases": [Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
    "deadline": None,
    "suppress_health_check": list(HealthCheck),
}
TRANSFER = (
    Do("s0", "plain"),
    Try((Do("s1", "once"), Do("s2", "once")), (Do("s3", "once"),), True, ()),
    Do("s4", "plain"),
)
BOOKING = (
    Do("s0", "undo"),
    Do("s1", "once"),
    Try((Do("s2", "plain"),), (Do("s3", "undo"),), True, (Do("s4", "once"),)),
)


FALLBACK = (Try((Do("s0", "plain"),), (Do("s1", "plain"),), False, ()), Do("s22", "plain"))
NESTED = (Try((Try((Do("s0", "plain"),), None, False, (Do("s1", "plain"),)),), (), False, ()), Do("s22", "once"))


@settings(max_examples=300, **UNHURRIED)
@given(CASES)
@example((FALLBACK, {0}, Round(crash=2, is_after=False), [Round(mends=(0,))]))
@example((FALLBACK, {0}, Round(crash=3, is_after=False), [Round(mends=(0,))]))
@example((NESTED, {0}, Round(crash=2, is_after=False), [Round(mends=(0,))]))
@example((NESTED, {0}, Round(crash=3, is_after=False), [Round(mends=(0,), crash=2)]))
@example((TRANSFER, {2}, Round(), [Round(mends=(2,)), Round()]))
@example((TRANSFER, set(), Round(crash=4), [Round(edits=1), Round(crash=2)]))
@example((BOOKING, {2}, Round(), [Round(mends=(2,))]))
@example((BOOKING, {2}, Round(crash=9, is_after=False), [Round(mends=(2,), crash=3), Round(crash=4)]))
def test_the_ledger_is_that_of_some_uninterrupted_run(case: Any) -> None:
    law(*case)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@settings(max_examples=20_000, **UNHURRIED)
@given(CASES)
def test_so_are_thousands_of_them(case: Any) -> None:
    law(*case)
