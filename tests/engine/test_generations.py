"""A run that continues as another generation: the same run id, new inputs, an empty history."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from crashing import CrashingStore, SimulatedCrash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from outside import MortalStore, Saves

from flowckpt import (
    FileCheckpointStore,
    MemoryCheckpointStore,
    Retention,
    RunOptions,
    Secret,
    WorkflowEngine,
    continue_as,
    current_step,
    in_sync,
    step,
    workflow,
)
from flowckpt.core.records import generation
from flowckpt.core.records.wait import Signal, WaitKind, birth_of
from flowckpt.engine.determinism import check_determinism
from flowckpt.errors import (
    CheckpointNotFoundError,
    InputError,
    InputMismatchError,
    SecretMissingError,
    WorkflowDefinitionError,
)
from flowckpt.maintenance import copy_run
from flowckpt.testing import FakeClock

LEDGER: list[Any] = []
KEYS: list[str] = []


def note(what: Any) -> Any:
    LEDGER.append(what)
    return what


def keyed() -> None:
    KEYS.append(current_step().idempotency_key)


def undo(what: Any) -> None:
    LEDGER.append(("undone", what))


@pytest.fixture(autouse=True)
def empty_ledger() -> None:
    LEDGER.clear()
    KEYS.clear()


@workflow("batches")
def batches(first: int = 0, total: int = 0, count: int = 4):
    """Take numbers two by two: a generation for each pair."""
    one = yield step("one").python(note, first).checkpoint()
    two = yield step("two").python(note, first + 1).checkpoint()
    if first + 2 < 2 * count:
        return continue_as(first=first + 2, total=total + one + two, count=count)
    return total + one + two


def loaded(store: Any, run: str = "run") -> Any:
    return asyncio.run(store.load_latest(run))


def test_a_run_continues_with_new_inputs_and_an_empty_history_until_it_returns(reopen: Callable[[], Any]) -> None:
    told: list[Any] = []
    engine = WorkflowEngine(reopen(), listeners=[told.append])
    result = engine.run_sync(batches, workflow_id="run")
    assert (result.status, result.output, result.attempt) == ("completed", sum(range(8)), 4)
    assert (result.steps.executed, LEDGER) == (8, list(range(8)))
    store = reopen()
    latest = loaded(store)
    assert [each.path for each in latest.step_results] == ["one", "two"]
    assert latest.inputs == {"first": 6, "total": 15, "count": 4}
    assert asyncio.run(store.attempts("run")) == [4]
    listed = generation.former_generations(latest.metadata)
    assert [(each.number, each.steps, each.attempts) for each in listed] == [
        (1, 2, (1, 1)),
        (2, 2, (2, 2)),
        (3, 2, (3, 3)),
    ]
    assert all(each.started_at <= each.ended_at for each in listed)
    kinds = [each.kind for each in told if each.kind.startswith("Workflow")]
    assert kinds == ["WorkflowStarted", *["WorkflowContinued"] * 3, "WorkflowCompleted"]
    followed = [each for each in told if each.kind == "WorkflowContinued"]
    assert [(each.generation, each.attempt, each.executed) for each in followed] == [(2, 2, 2), (3, 3, 2), (4, 4, 2)]
    again = WorkflowEngine(reopen()).resume_sync(batches, workflow_id="run")
    assert (again.output, again.steps.executed) == (28, 0)


@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
def test_a_run_that_dies_at_any_save_ends_as_an_uninterrupted_one(reopen: Callable[[], Any], is_after: bool) -> None:
    counting = CrashingStore(reopen(), 10**9, is_after=False)
    expected = WorkflowEngine(counting).run_sync(batches, workflow_id="whole", count=3).output
    effects = [*LEDGER]
    for crash in range(1, counting.saves + 1):
        LEDGER.clear()
        run = f"crash-{crash}-{is_after}"
        dying = CrashingStore(reopen(), crash, is_after=is_after)
        with contextlib.suppress(SimulatedCrash):
            WorkflowEngine(dying).run_sync(batches, workflow_id=run, count=3)
        if crash == 1 and not is_after:
            continue  # there is no run
        engine = WorkflowEngine(reopen())
        plan = in_sync(engine).plan(batches, workflow_id=run)
        resumed = engine.resume_sync(batches, workflow_id=run)
        assert (resumed.status, resumed.output) == ("completed", expected)
        assert [path for path, n in enumerate(LEDGER) if n not in effects] == []
        # A step whose checkpoint was acknowledged is not done again: at most the one before the crash is.
        assert sorted(set(LEDGER)) == effects
        assert len(LEDGER) <= len(effects) + 1
        assert plan.stale_stop is None


def test_a_process_that_dies_at_each_boundary_is_not_a_crash_loop(reopen: Callable[[], Any]) -> None:
    for attempt in range(60):
        dying = CrashingStore(reopen(), 3 if attempt == 0 else 4, is_after=False)
        engine = WorkflowEngine(dying)
        try:
            if attempt == 0:
                result = engine.run_sync(batches, workflow_id="run", count=12)
            else:
                result = engine.resume_sync(batches, workflow_id="run")
        except SimulatedCrash:
            continue
        break
    assert attempt > 5
    assert result.output == sum(range(24))


def test_the_plan_of_a_run_that_died_at_a_boundary_says_that_it_continues(reopen: Callable[[], Any]) -> None:
    with contextlib.suppress(SimulatedCrash):
        WorkflowEngine(CrashingStore(reopen(), 4, is_after=False)).run_sync(batches, workflow_id="run")
    engine = WorkflowEngine(reopen())
    plan = in_sync(engine).plan(batches, workflow_id="run")
    assert [str(each.decision) for each in plan.steps] == ["reuse", "reuse"]
    assert (plan.is_nothing_to_do, plan.ends_at) == (False, "the workflow continues as its next generation")
    engine.resume_sync(batches, workflow_id="run")
    assert in_sync(engine).plan(batches, workflow_id="run").is_nothing_to_do


@workflow("listens")
def listens(seen: tuple[str, ...] = (), count: int = 3):
    word = yield step("word").wait("word")
    yield step("note").python(note, word)
    seen = (*seen, word)
    return seen if len(seen) == count else continue_as(seen=seen, count=count)


def test_messages_that_no_step_has_taken_stay_and_none_is_taken_twice(reopen: Callable[[], Any]) -> None:
    store = reopen()
    engine = WorkflowEngine(store)
    assert engine.run_sync(listens, workflow_id="run").status == "suspended"
    for word in ("a", "b"):
        in_sync(engine).signal("run", "word", word)
    kept = asyncio.run(store.signals("run"))
    assert engine.resume_sync(listens, workflow_id="run").status == "suspended"
    assert LEDGER == ["a", "b"]
    for each in kept:  # as from a store whose removal a crash has undone
        asyncio.run(store.send_signal("run", each))
    assert engine.resume_sync(listens, workflow_id="run").status == "suspended"
    assert LEDGER == ["a", "b"]
    in_sync(engine).signal("run", "word", "c")
    result = engine.resume_sync(listens, workflow_id="run")
    assert (result.output, LEDGER) == (("a", "b", "c"), ["a", "b", "c"])


@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
def test_no_message_is_lost_or_taken_twice_by_a_crash(reopen: Callable[[], Any], is_after: bool) -> None:
    for crash in range(2, 14):
        LEDGER.clear()
        run = f"run-{crash}"
        store = reopen()
        WorkflowEngine(store).run_sync(listens, workflow_id=run)
        for word in ("a", "b", "c"):
            in_sync(WorkflowEngine(store)).signal(run, "word", word)
        with contextlib.suppress(SimulatedCrash):
            WorkflowEngine(CrashingStore(reopen(), crash, is_after=is_after)).resume_sync(listens, workflow_id=run)
        result = WorkflowEngine(reopen()).resume_sync(listens, workflow_id=run)
        assert result.output == ("a", "b", "c")
        assert asyncio.run(reopen().signals(run)) == []


@workflow("serves")
def serves(number: int = 1):
    question = yield step("question").wait("question")
    yield step("answer").reply("question", (number, question * 2))
    return continue_as(number=number + 1)


async def test_a_reply_is_read_although_the_generation_that_gave_it_is_gone() -> None:
    store = MemoryCheckpointStore()
    engine = WorkflowEngine(store)

    async def driven() -> None:
        async for _ in engine.resume(serves, workflow_id="run"):
            pass

    async for _ in engine.execute(serves, workflow_id="run"):
        pass
    for number, question in enumerate(("a", "b", "c"), 1):
        await engine.signal("run", "question", question, signal_id=f"message-{number}")
    await driven()
    for number, reply in enumerate([(1, "aa"), (2, "bb"), (3, "cc")], 1):
        answered = await engine.signal("run", "question", signal_id=f"message-{number}", wait=60)
        assert (answered.reply, answered.is_new) == (reply, False)


@workflow("pays")
def pays(number: int = 1, fails_at: int = 2):
    yield step("pay").python(note, number).rollback(undo)
    if number == fails_at:
        yield step("fail").python(int, "x")
    return continue_as(number=number + 1, fails_at=fails_at)


def test_a_generation_that_has_ended_is_final() -> None:
    result = WorkflowEngine(MemoryCheckpointStore()).run_sync(pays, fails_at=3)
    assert result.status == "failed"
    assert LEDGER == [1, 2, 3, ("undone", 3)]


@workflow("told")
def told_once(name: str):
    yield step("note").python(note, name)


@workflow("acts")
def acts(number: int = 1):
    yield step("key").python(keyed)
    yield step("start").start(told_once, name="same")
    yield step("send").signal("other", "word", "same")
    if number < 3:
        return continue_as(number=number + 1)
    return None


def test_each_generation_acts_on_other_runs_and_services_for_itself() -> None:
    engine = WorkflowEngine(MemoryCheckpointStore())
    assert engine.run_sync(listens, workflow_id="other").status == "suspended"
    engine.run_sync(acts, workflow_id="run")
    assert len(set(KEYS)) == 3
    assert LEDGER.count("same") >= 3
    engine.resume_sync(listens, workflow_id="other")
    assert len(loaded(engine.store, "other").inputs["seen"]) == 2  # three messages, of which the last ended it


def test_the_record_of_an_endless_run_does_not_grow(reopen: Callable[[], Any]) -> None:
    sizes: list[int] = []
    for count in (12, 60):
        store = reopen()
        WorkflowEngine(store).run_sync(batches, workflow_id=f"run-{count}", count=count)
        metadata = loaded(store, f"run-{count}").metadata
        assert len(generation.former_generations(metadata)) == 10
        assert generation.number_of(metadata) == count
        sizes += asyncio.run(store.stored_bytes([f"run-{count}"]))
    assert sizes[1] <= sizes[0] * 1.1


def test_retention_says_how_many_former_generations_are_listed() -> None:
    engine = WorkflowEngine(MemoryCheckpointStore(), retention=Retention(keep_generations=2))
    engine.run_sync(batches, workflow_id="run", count=6)
    listed = generation.former_generations(loaded(engine.store).metadata)
    assert [each.number for each in listed] == [4, 5]


@workflow("asks")
def asks(wrong: str = "") -> Any:
    yield step("note").python(note, "asked")
    if wrong == "unknown":
        return continue_as(colour="red")
    if wrong == "unstorable":
        return continue_as(wrong=object())
    if wrong == "type":
        return continue_as(wrong=17)
    return continue_as()


@pytest.mark.parametrize(("wrong", "said"), [("unknown", "'colour'"), ("unstorable", "wrong"), ("type", "str, got 17")])
def test_the_inputs_of_the_next_generation_are_checked_like_those_of_a_run(wrong: str, said: str) -> None:
    engine = WorkflowEngine(MemoryCheckpointStore())
    result = engine.run_sync(asks, workflow_id="run", wrong=wrong)
    assert result.status == "failed"
    assert said in str(result.error)
    assert str(result.error).startswith(f"continue_as() at {__file__}:")
    assert loaded(engine.store).inputs == {"wrong": wrong}


@workflow("needs")
def needs(name: str):
    yield step("note").python(note, name)
    return continue_as()


def test_an_input_without_a_default_has_to_be_given_again() -> None:
    result = WorkflowEngine(MemoryCheckpointStore()).run_sync(needs, name="x")
    assert isinstance(result.error, InputError)
    assert "lacks its input 'name'" in str(result.error)
    assert result.error.remedy == "Pass it on: return continue_as(name=name, …)."


@workflow("forgets")
def forgets():
    yield step("note").python(note, 1)
    continue_as()


def test_a_forgotten_return_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "flowckpt"):
        result = WorkflowEngine(MemoryCheckpointStore()).run_sync(forgets)
    assert result.status == "completed"
    assert "and not returned" in caplog.text
    assert f"{Path(__file__).name}:" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING, "flowckpt"):
        WorkflowEngine(MemoryCheckpointStore()).run_sync(batches)
    assert not caplog.text


@workflow("yields it")
def yields_it():
    yield continue_as()


@workflow("delegates")
def delegates():
    yield from continue_as()


@workflow("forgets to call")
def forgets_to_call():
    yield step("note").python(note, 1)
    return continue_as


@workflow("by position")
def by_position(number: int = 1):
    yield step("note").python(note, number)
    return continue_as(number + 1)  # type: ignore[arg-type]


@workflow("parent")
def parent():
    yield step("child").workflow(batches)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (yields_it, "return continue_as"),
        (delegates, "return continue_as"),
        (forgets_to_call, "without calling it"),
        (by_position, "by name, got 2 (at "),
        (parent, "but a child has no generations"),
    ],
)
def test_only_the_workflow_of_a_run_returns_it(wrong: Any, said: str) -> None:
    result = WorkflowEngine(MemoryCheckpointStore()).run_sync(wrong)
    assert isinstance(result.error, WorkflowDefinitionError)
    assert said in f"{result.error} {result.error.remedy}"


def test_a_start_by_the_same_inputs_finds_the_run_whatever_its_generation() -> None:
    store = MemoryCheckpointStore()
    dying = CrashingStore(store, 6, is_after=True)
    with contextlib.suppress(SimulatedCrash):
        WorkflowEngine(dying).run_sync(batches, workflow_id="run", count=3)
    engine = WorkflowEngine(store)
    assert loaded(store).inputs["first"] == 2
    asyncio.run(store.release("run"))
    with pytest.raises(InputMismatchError):
        engine.run_sync(batches, workflow_id="run", count=9, if_exists="resume")
    result = engine.run_sync(batches, workflow_id="run", count=3, if_exists="resume")
    assert result.output == sum(range(6))
    assert engine.run_sync(batches, workflow_id="run", count=3, if_exists="return").output == sum(range(6))


@workflow("knows")
def knows(token: Secret[str], number: int = 1):
    yield step("note").python(note, len(token.reveal()))
    if number < 3:
        return continue_as(token=token, number=number + 1)
    return None


def test_secret_inputs_go_from_generation_to_generation_and_into_no_record() -> None:
    store = MemoryCheckpointStore()
    with contextlib.suppress(SimulatedCrash):
        WorkflowEngine(CrashingStore(store, 3, is_after=True)).run_sync(knows, workflow_id="run", token="hidden-word")
    asyncio.run(store.release("run"))
    engine = WorkflowEngine(store)
    with pytest.raises(SecretMissingError):
        engine.resume_sync(knows, workflow_id="run")
    assert engine.resume_sync(knows, workflow_id="run", token="hidden-word").status == "completed"
    assert "hidden-word" not in repr(store.runs.stored["run"].current.encoded) + repr(loaded(store).metadata)


def test_a_checkpoint_of_an_earlier_generation_is_gone_and_a_fork_starts_with_the_first(
    reopen: Callable[[], Any],
) -> None:
    engine = in_sync(WorkflowEngine(reopen()))
    engine.run(batches, workflow_id="run")
    with pytest.raises(CheckpointNotFoundError):
        engine.rollback("run", "@started")
    forked = engine.fork("run", from_step="two", workflow=batches)
    assert generation.number_of(loaded(reopen(), forked.workflow_id).metadata) == 1
    result = WorkflowEngine(reopen()).resume_sync(batches, workflow_id=forked.workflow_id)
    assert result.output == sum(range(8))


def test_a_copy_has_the_generations_and_continues(tmp_path: Path) -> None:
    store, target = MemoryCheckpointStore(), FileCheckpointStore(tmp_path / "copy")
    with contextlib.suppress(SimulatedCrash):
        WorkflowEngine(CrashingStore(store, 8, is_after=True)).run_sync(batches, workflow_id="run")
    asyncio.run(store.release("run"))
    asyncio.run(copy_run(store, target, "run"))
    infos = [asyncio.run(each.describe_run("run")) for each in (store, target)]
    assert infos[0].started_at == infos[1].started_at < loaded(target).saved_at
    result = WorkflowEngine(target).resume_sync(batches, workflow_id="run")
    assert result.output == sum(range(8))
    assert generation.number_of(loaded(target).metadata) == 4


def test_the_check_of_a_workflow_ends_with_its_first_generation() -> None:
    report = check_determinism(batches)
    assert report.is_deterministic
    assert report.status == "completed"
    assert LEDGER == [0, 1]


SHORT_OF: list[Any] = []


async def passes(number: int) -> None:
    store, clock = SHORT_OF
    if number == 1:
        birth = birth_of((await store.load_latest("run")).metadata)
        change = Signal("one", "tag", clock.now(), {"colour": "red"}, kind=WaitKind.TAG, birth=birth)
        await store.send_signal("run", change)
    clock.advance(0.4)


@workflow("short")
def short(number: int = 1):
    yield step("passes").python(passes, number)
    return continue_as(number=number + 1) if number < 9 else None


def test_a_request_is_followed_although_each_generation_ends_before_the_first_look() -> None:
    SHORT_OF[:] = store, clock = MemoryCheckpointStore(), FakeClock()
    assert WorkflowEngine(store, clock=clock).run_sync(short, workflow_id="run").status == "completed"
    assert loaded(store).metadata["tags"] == {"colour": "red"}
    assert asyncio.run(store.signals("run")) == []


@workflow("program")
def program(blocks: list[str], place: int = 0, total: int = 0):
    """One generation for each block, whose letters are its steps."""
    for number, kind in enumerate(blocks[place]):
        made = step(f"{kind}{number}")
        if kind == "w":
            total += yield made.wait(f"word-{place}-{number}", type=int)
        elif kind == "m":
            total += sum(each[2] for each in (yield made.map(note, [(place, number, 0), (place, number, 1)])))
        else:
            noted = made.python(note, (place, number, 0))
            total += (yield noted.checkpoint() if kind == "c" else noted)[1]
    if place + 1 < len(blocks):
        return continue_as(blocks=blocks, place=place + 1, total=total)
    return total


def ended(store: Any, blocks: list[str], saves: Saves) -> Any:
    """Lead a program to its end over all its deaths; return its output."""
    for _ in range(100):
        store.runs.owned.clear()
        engine = WorkflowEngine(MortalStore(store, saves))
        try:
            if loaded(store) is None:
                result = engine.run_sync(program, workflow_id="run", blocks=blocks)
            else:
                result = engine.resume_sync(program, workflow_id="run", options=RunOptions(max_crashes=0))
        except SimulatedCrash:
            continue
        if result.status == "completed":
            return result.output
        assert result.status == "suspended", result.error
        for wait in result.waits:
            in_sync(WorkflowEngine(store)).signal("run", wait.name, 7, signal_id=wait.name)
    raise AssertionError("the run does not come to its end")


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(st.text("pcmw", min_size=1, max_size=4), min_size=1, max_size=4),
    st.sets(st.integers(1, 25), max_size=5),
    st.booleans(),
)
def test_a_random_program_of_generations_that_dies_at_any_saves_ends_as_an_uninterrupted_one(
    blocks: list[str], deaths: set[int], is_after: bool
) -> None:
    LEDGER.clear()
    expected, whole = ended(MemoryCheckpointStore(), blocks, Saves()), [*LEDGER]
    LEDGER.clear()
    store = MemoryCheckpointStore()
    assert ended(store, blocks, Saves(*deaths, is_after=is_after)) == expected
    assert sorted({*LEDGER}) == sorted(whole)
    # Each death repeats at most the steps of one generation, and none of a generation that has ended.
    places = [place for place, _, _ in LEDGER]
    assert places == sorted(places)
    assert generation.number_of(loaded(store).metadata) == len(blocks)
    assert asyncio.run(store.signals("run")) == []


@workflow("counted")
def counted(left: int):
    yield step("work").python(int, left).checkpoint()
    if left:
        return continue_as(left=left - 1)
    return "done"


def test_the_result_counts_the_steps_of_all_generations_by_any_clock():
    """A clock that stands still gives each generation a duration of 0."""
    result = WorkflowEngine(MemoryCheckpointStore(), clock=FakeClock()).run_sync(counted, left=2)
    assert (result.status, result.steps.executed, result.duration_ms) == ("completed", 3, 0)


def test_a_reader_in_another_thread_sees_a_generation_or_the_next_one():
    store, seen, is_over = MemoryCheckpointStore(), list[Any](), threading.Event()

    @workflow
    def counting(number: int):
        yield step("note").python(int, number).checkpoint()
        return continue_as(number=number + 1) if number < 300 else number

    def read() -> None:
        while not is_over.is_set():
            seen.append(store.runs.load_latest("run"))

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # threads take turns after each few instructions
    reader = threading.Thread(target=read)
    try:
        reader.start()
        assert WorkflowEngine(store).run_sync(counting, workflow_id="run", number=0).output == 300
    finally:
        is_over.set()
        reader.join()
        sys.setswitchinterval(before)
    found = [None if each is None else each.sequence for each in seen]
    begun = found[next(index for index, each in enumerate(found) if each) :]
    assert None not in begun and begun == sorted(begun)
