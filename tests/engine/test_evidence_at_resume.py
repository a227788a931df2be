"""A resume asks the world again before it reuses a result: what moved is run again, with all that follows."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from crashing import CrashingStore, SimulatedCrash

from flowckpt import FileCheckpointStore, RunOptions, WorkflowEngine, in_sync, step, workflow
from flowckpt.errors import (
    FlowckptError,
    InputError,
    InputMismatchError,
    StaleStepError,
    StepInDoubtError,
    StepNotFoundError,
    WorkflowChangedError,
)
from flowckpt.evidence import EvidenceVerifier, claims, file_sha256, predicate

ran: list[str] = []
asked: list[str] = []
world: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def _fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran.clear()
    asked.clear()
    world.clear()
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)


def rows(path: str) -> str:
    ran.append("rows")
    Path(path).write_text(world.get("rows", "3 1 2"))
    return path


def total(path: str) -> int:
    ran.append("total")
    answer = sum(map(int, Path(path).read_text().split()))
    Path("total").write_text(str(answer))
    return answer


def report(answer: int) -> str:
    ran.append("report")
    return f"total {answer}"


@workflow
def flow(path: str = "rows") -> Generator[Any, Any, Any]:
    written = yield step("rows").python(rows, path).evidence(file_sha256(path)).checkpoint()
    answer = yield step("total").python(total, written).evidence(file_sha256("total")).checkpoint()
    return (yield step("report").python(report, answer).checkpoint())


def is_up() -> bool:
    asked.append("is_up")
    if "down" in world:
        raise OSError("no answer")
    return "gone" not in world


def note(value: Any) -> Any:
    ran.append(str(value))
    return value


def deploy() -> None:
    ran.append("deploy")
    world.clear()


@workflow
def served() -> Generator[Any, Any, Any]:
    yield step("deploy").python(deploy).evidence(predicate(is_up)).checkpoint()
    return (yield step("after").python(note, "after").checkpoint())


def start(store: Any, made: Any = flow) -> Any:
    result = WorkflowEngine(store).run_sync(made, workflow_id="run")
    assert result.status == "completed", result.error
    ran.clear()
    asked.clear()
    return result


def resume(store: Any, made: Any = flow, **options: Any) -> Any:
    return WorkflowEngine(store).resume_sync(made, workflow_id="run", options=RunOptions(**options))


def told(store: Any, made: Any = flow, **options: Any) -> list[tuple[Any, ...]]:
    events: list[tuple[Any, ...]] = []
    engine = WorkflowEngine(store)
    session = engine.prepare_resume(made, "run", RunOptions(**options), {})
    engine.drive_sync(
        session,
        on_event=lambda event: events.append(
            (event.kind, getattr(event, "path", None) or getattr(event, "checkpoint_id", None))
        ),
    )
    return events


def latest(store: Any) -> Any:
    return asyncio.run(store.load_latest("run"))


def checkpoints(store: Any) -> list[tuple[str, int, int]]:
    return [(each.checkpoint_id, each.sequence, each.attempt) for each in asyncio.run(store.list_checkpoints("run"))]


# --- what moved is run again ------------------------------------------------------------------------------------------


def _same_size() -> None:
    Path("rows").write_text("3 1 9")


def _touched() -> None:
    text = Path("rows").read_text()
    Path("rows").unlink()
    Path("rows").write_text(text)


MOVES: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "nothing": (lambda: None, []),
    "a file written again as it was": (_touched, []),
    "a file deleted": (lambda: Path("rows").unlink(), ["rows", "total", "report"]),
    "a file edited": (lambda: Path("rows").write_text("3"), ["rows", "total", "report"]),
    "a file edited to the same length": (_same_size, ["rows", "total", "report"]),
    "a file cut in half": (lambda: Path("rows").write_text("3 1"), ["rows", "total", "report"]),
    "a file emptied": (lambda: Path("rows").write_text(""), ["rows", "total", "report"]),
    "the file of a later step deleted": (lambda: Path("total").unlink(), ["total", "report"]),
    "a file that nobody claims": (lambda: Path("other").write_text("x"), []),
}


@pytest.mark.parametrize(("move", "runs"), MOVES.values(), ids=MOVES)
def test_everything_runs_again_from_the_first_step_whose_facts_have_moved(
    move: Callable[[], Any], runs: list[str], reopen: Callable[[], Any]
) -> None:
    start(reopen())
    move()
    result = resume(reopen())
    assert ran == runs
    assert (result.status, result.output) == ("completed", "total 6")
    assert (result.steps.executed, result.steps.restored, result.steps.failed) == (len(runs), 3 - len(runs), 0)
    assert result.attempt == (2 if runs else 1)
    assert (Path("rows").read_text(), Path("total").read_text()) == ("3 1 2", "6")
    assert [each.attempt for each in latest(reopen()).step_results] == [1] * (3 - len(runs)) + [2] * len(runs)


def test_a_rerun_computes_with_what_it_finds_now(reopen: Callable[[], Any]) -> None:
    start(reopen())
    Path("rows").unlink()
    world["rows"] = "10 20"
    assert resume(reopen()).output == "total 30"
    assert resume(reopen()).steps.restored == 3


def test_what_a_rerun_does_is_told_in_its_order(reopen: Callable[[], Any]) -> None:
    start(reopen())
    Path("total").unlink()
    assert told(reopen()) == [
        ("WorkflowResumed", "@completed"),
        ("EvidenceVerified", "rows"),
        ("StepRestored", "rows"),
        ("EvidenceFailed", "total"),
        ("CheckpointSaved", "@started.2"),
        ("StepStarted", "total"),
        ("EvidenceVerified", "total"),
        ("StepCompleted", "total"),
        ("CheckpointSaved", "total"),
        ("StepStarted", "report"),
        ("StepCompleted", "report"),
        ("CheckpointSaved", "report"),
        ("CheckpointSaved", "@completed.2"),
        ("WorkflowCompleted", None),
    ]


def test_the_results_that_a_rerun_replaced_can_still_be_loaded(reopen: Callable[[], Any]) -> None:
    start(reopen())
    Path("rows").write_text("x")
    world["rows"] = "5"
    resume(reopen())
    world["rows"] = "7"
    Path("rows").write_text("x")
    resume(reopen())
    store = reopen()
    for attempt, answer in ((1, 6), (2, 5), (3, 7)):
        data = asyncio.run(store.load_attempt("run", attempt))
        assert [each.output for each in data.step_results] == ["rows", answer, f"total {answer}"]
        assert (data.attempt, data.status) == (attempt, "completed")
        assert {each.attempt for each in data.step_results} == {attempt}
    assert asyncio.run(store.load_attempt("run", 4)) is None


def test_a_run_that_died_is_checked_before_it_goes_on(reopen: Callable[[], Any]) -> None:
    for at in (2, 3, 4):  # behind rows, total, report
        with pytest.raises(SimulatedCrash):
            WorkflowEngine(CrashingStore(reopen(), at, is_after=True)).run_sync(flow, workflow_id=f"run{at}")
        ran.clear()
        Path("rows").unlink()
        result = WorkflowEngine(reopen()).resume_sync(flow, workflow_id=f"run{at}")
        assert (result.output, ran, result.steps.restored) == ("total 6", ["rows", "total", "report"], 0)


def test_evidence_is_asked_for_at_every_resume_and_not_once_for_all(reopen: Callable[[], Any]) -> None:
    start(reopen(), served)
    for _ in range(3):
        asked.clear()
        assert resume(reopen(), served).steps.restored == 2
        assert asked == ["is_up"]
    world["gone"] = True
    with pytest.raises(StaleStepError):
        resume(reopen(), served, on_stale="fail")
    assert resume(reopen(), served).steps.executed == 2


def test_a_rerun_that_moves_the_facts_of_a_later_step_is_noticed_when_that_is_come_to(
    reopen: Callable[[], Any],
) -> None:
    def writes_both() -> int:
        ran.append("both")
        Path("mine").write_text("mine")
        Path("theirs").write_text("overwritten")
        return 1

    def writes_theirs() -> int:
        ran.append("theirs")
        Path("theirs").write_text("theirs")
        return 2

    @workflow
    def shared() -> Generator[Any, Any, None]:
        yield step("both").python(writes_both).evidence(file_sha256("mine")).checkpoint()
        yield step("theirs").python(writes_theirs).evidence(file_sha256("theirs")).checkpoint()

    start(reopen(), shared)
    Path("mine").unlink()
    assert resume(reopen(), shared, reuse="inputs").status == "completed"
    assert (ran, Path("theirs").read_text()) == (["both", "theirs"], "theirs")


def uses(connection: object) -> None:
    ran.append("uses")


@workflow
def opaque() -> Generator[Any, Any, None]:
    yield step("rows").python(rows, "rows").evidence(file_sha256("rows")).checkpoint()
    yield step("uses").python(uses, threading.Lock()).checkpoint()
    yield step("note").python(note, "note").checkpoint()


OPAQUE = [({}, []), ({"reuse": "inputs"}, ["rows", "uses"]), ({"reuse": "inputs", "on_stale": "reuse"}, [])]


@pytest.mark.parametrize(("options", "runs"), OPAQUE)
def test_what_cannot_be_compared_is_reused_unless_a_step_before_it_runs_again(
    options: dict[str, Any], runs: list[str], reopen: Callable[[], Any]
) -> None:
    start(reopen(), opaque)
    if options:
        Path("rows").unlink()
    assert resume(reopen(), opaque, **options).steps.executed == len(runs)
    assert ran == runs


# --- nothing moved ----------------------------------------------------------------------------------------------------


def test_a_complete_run_that_is_still_true_is_answered_with_nothing_run_and_nothing_saved(
    reopen: Callable[[], Any],
) -> None:
    first = start(reopen())
    before = checkpoints(reopen())
    assert told(reopen()) == [("WorkflowResumed", "@completed"), ("WorkflowCompleted", None)]
    again = resume(reopen())
    assert (again.output, again.status, again.attempt) == (first.output, "completed", 1)
    assert (again.steps.executed, again.steps.restored) == (0, 3)
    assert (ran, checkpoints(reopen())) == ([], before)


def test_a_complete_run_leaves_its_files_byte_for_byte_as_they_were(tmp_path: Path) -> None:
    store = tmp_path / "store"
    start(FileCheckpointStore(store))
    before = bytes_of(store)
    for _ in range(3):
        assert resume(FileCheckpointStore(store)).steps.restored == 3
    assert bytes_of(store) == before


# --- the policy -------------------------------------------------------------------------------------------------------

POLICIES = [  # how the world is, options, what runs or why it stops
    ("gone", {}, ["deploy", "after"]),
    ("gone", {"on_stale": "rerun"}, ["deploy", "after"]),
    ("gone", {"on_stale": "reuse"}, []),
    ("gone", {"on_stale": "fail"}, "returned False"),
    ("gone", {"on_stale": "fail", "force": True}, ["deploy", "after"]),
    ("gone", {"on_stale": "reuse", "force": True}, []),
    ("gone", {"reuse": "inputs"}, ["deploy"]),
    ("gone", {"reuse": "inputs", "on_stale": "fail"}, "returned False"),
    ("down", {}, "no answer"),
    ("down", {"on_stale": "fail"}, "no answer"),
    ("down", {"on_stale": "reuse"}, []),
    ("down", {"on_stale": "rerun"}, ["deploy", "after"]),
    ("down", {"force": True}, ["deploy", "after"]),
    ("down", {"reuse": "inputs"}, "no answer"),
    ("down", {"on_code_change": "rerun"}, "no answer"),
    ("up", {"on_stale": "rerun"}, []),
    ("up", {"force": True}, []),
    ("up", {"from_step": "deploy"}, ["deploy", "after"]),
    ("up", {"from_step": "after"}, ["after"]),
    ("gone", {"from_step": "deploy", "on_stale": "fail"}, ["deploy", "after"]),
    ("down", {"from_step": "deploy"}, ["deploy", "after"]),
    ("gone", {"from_step": "after", "on_stale": "reuse"}, ["after"]),
    ("down", {"from_step": "after"}, "no answer"),
]


@pytest.mark.parametrize(("state", "options", "does"), POLICIES)
def test_what_follows_is_what_was_said_and_the_plan_says_it_before(
    state: str, options: dict[str, Any], does: list[str] | str, reopen: Callable[[], Any]
) -> None:
    start(reopen(), served)
    before = checkpoints(reopen())
    world[state] = True
    plan = in_sync(WorkflowEngine(reopen())).plan(served, workflow_id="run", options=RunOptions(**options))
    if isinstance(does, str):
        with pytest.raises(StaleStepError, match=does) as stopped:
            resume(reopen(), served, **options)
        assert (stopped.value.path, ran) == ("deploy", [])
        says = " is stale: " if state == "gone" else " may be stale: evidence: it cannot be checked"
        assert says in str(stopped.value) and stopped.value.is_proved is (state == "gone")
        assert [reason.partition(":")[0] for reason in stopped.value.reasons] == ["evidence"]
        assert plan.stopped_by == "deploy"
        assert checkpoints(reopen()) == before
    else:
        assert not plan.stops
        assert [each.path for each in plan.steps if each.decision == "rerun"] == does
        result = resume(reopen(), served, **options)
        assert ran == does
        assert (result.status, result.steps.executed, result.steps.restored) == ("completed", len(does), 2 - len(does))


def test_a_step_to_go_on_from_is_found_by_its_path_or_its_name(reopen: Callable[[], Any]) -> None:
    @workflow
    def loop() -> Generator[Any, Any, None]:
        for number in range(3):
            yield step("one").python(note, f"one {number}").checkpoint()
            yield step("two").python(note, f"two {number}").checkpoint()

    start(reopen(), loop)
    for from_step, runs in (
        ("two[1]", ["two 1", "one 2", "two 2"]),
        ("two", ["two 0", "one 1", "two 1", "one 2", "two 2"]),
        ("one[2]", ["one 2", "two 2"]),
    ):
        ran.clear()
        assert resume(reopen(), loop, from_step=from_step).status == "completed"
        assert ran == runs
    with pytest.raises(StepNotFoundError, match="no step 'three'"):
        resume(reopen(), loop, from_step="three")


def test_the_first_recorded_use_of_a_name_is_meant_where_the_first_is_never_recorded(reopen: Callable[[], Any]) -> None:
    @workflow
    def twice() -> Generator[Any, Any, None]:
        yield step("model").python(note, "loads").ephemeral()
        yield step("before").python(note, "before").checkpoint()
        yield step("model").python(note, "trains").checkpoint()

    start(reopen(), twice)
    assert resume(reopen(), twice, from_step="model").steps.restored == 1
    assert ran == ["loads", "trains"]


# --- who is asked, and where ------------------------------------------------------------------------------------------


def test_relative_paths_are_those_of_the_directory_in_which_the_run_was_started(
    reopen: Callable[[], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(reopen())
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert resume(reopen()).steps.restored == 3
    shutil.copy(tmp_path / "work" / "rows", elsewhere / "rows")
    (tmp_path / "work" / "rows").unlink()
    with pytest.raises(StaleStepError, match="rows does not exist"):
        resume(reopen(), on_stale="fail")


def test_the_verifier_of_the_engine_is_the_one_that_is_asked(reopen: Callable[[], Any], tmp_path: Path) -> None:
    start(reopen())
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / "work", copy)
    Path("rows").unlink()
    engine = WorkflowEngine(reopen(), verifier=EvidenceVerifier(copy))
    assert engine.resume_sync(flow, workflow_id="run").steps.restored == 3


def test_a_look_is_enough_where_it_is_asked_for(reopen: Callable[[], Any]) -> None:
    start(reopen())
    assert resume(reopen(), verify="stat").steps.restored == 3
    Path("rows").write_text("9 9 9")
    with pytest.raises(StaleStepError):
        resume(reopen(), verify="stat", on_stale="fail")


@pytest.mark.parametrize(("state", "runs"), [("up", []), ("gone", ["a"])])
@pytest.mark.parametrize("at", [2, 3], ids=["died", "complete"])
def test_a_predicate_that_only_the_program_knows_is_asked_when_its_step_is_yielded_again(
    at: int, state: str, runs: list[str], reopen: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    @workflow
    def late() -> Generator[Any, Any, None]:
        yield step("a").python(note, "a").evidence(lambda out: predicate(is_up)).checkpoint()

    with pytest.raises(SimulatedCrash):
        WorkflowEngine(CrashingStore(reopen(), at, is_after=True)).run_sync(late, workflow_id="run")
    monkeypatch.setattr(claims, "_FUNCTIONS", {})  # another process, which has made no claims yet
    ran.clear()
    world[state] = True
    result = resume(reopen(), late)
    assert ran == runs
    assert result.steps.restored == 1 - len(runs)


def test_answers_are_written_down_by_the_attempt_that_relied_on_them(reopen: Callable[[], Any]) -> None:
    start(reopen())
    Path("total").unlink()
    resume(reopen())
    begun = asyncio.run(reopen().load("run", "@started.2"))
    assert [(each["path"], each["outcome"]) for each in begun.evidence] == [("rows", "verified"), ("total", "failed")]
    assert [each.path for each in begun.step_results] == ["rows"]


# --- refusals ---------------------------------------------------------------------------------------------------------


def bytes_of(store: Path) -> dict[str, bytes]:
    """All that a store holds; a mark is only a second name, by which a dead owner would see that it was replaced."""
    files = [each for each in sorted(store.rglob("*")) if each.is_file() and not each.name.startswith(".fenced-")]
    return {str(each.relative_to(store)): each.read_bytes() for each in files}


@workflow
def guarded(limit: int = 1) -> Generator[Any, Any, None]:
    yield step("deploy").python(note, "deploy").evidence(predicate(is_up), file_sha256("rows")).checkpoint()
    if "renamed" not in world:
        yield step("after").python(note, "after").version(world.get("version", "1")).checkpoint()
    yield step("pay").python(note, "pay").at_most_once()


REFUSALS: dict[str, tuple[str, dict[str, Any], dict[str, Any], type[FlowckptError]]] = {
    "a moved fact": ("gone", {"on_stale": "fail"}, {}, StaleStepError),
    "a fact that cannot be checked": ("down", {}, {}, StaleStepError),
    "a moved tag": ("version", {"on_stale": "fail"}, {}, StaleStepError),
    "a step in doubt": ("", {}, {}, StepInDoubtError),
    "a step left out": ("renamed", {}, {}, WorkflowChangedError),
    "a step that is not there": ("", {"from_step": "nowhere"}, {}, StepNotFoundError),
    "another input": ("", {}, {"limit": 2}, InputMismatchError),
    "an unknown input": ("", {}, {"other": 2}, InputError),
}


@pytest.mark.parametrize("mode", ["prefix", "inputs"])
@pytest.mark.parametrize(("state", "options", "inputs", "error"), REFUSALS.values(), ids=REFUSALS)
def test_a_refused_resume_runs_nothing_and_leaves_the_files_byte_for_byte_as_they_were(
    state: str, options: dict[str, Any], inputs: dict[str, Any], error: type[FlowckptError], mode: str, tmp_path: Path
) -> None:
    Path("rows").write_text("1")
    inner = FileCheckpointStore(tmp_path / "store")
    with pytest.raises(SimulatedCrash):
        WorkflowEngine(CrashingStore(inner, 4, is_after=True)).run_sync(guarded, workflow_id="run")
    for owned in inner.runs.owned.values():
        owned.close()
    inner.runs.owned.clear()
    assert latest(FileCheckpointStore(tmp_path / "store")).in_flight == ("pay",)
    ran.clear()
    world[state] = "2"
    before = bytes_of(tmp_path / "store")
    for _ in range(2):
        with pytest.raises(error):
            WorkflowEngine(FileCheckpointStore(tmp_path / "store")).resume_sync(
                guarded, workflow_id="run", options=RunOptions(reuse=mode, **options), **inputs
            )
        assert (ran, bytes_of(tmp_path / "store")) == ([], before)
    world.clear()
    done = resume(FileCheckpointStore(tmp_path / "store"), guarded, force=True)
    assert (done.status, done.attempt, ran) == ("completed", 2, ["pay"])


def test_a_plan_of_moved_facts_changes_no_byte_either(tmp_path: Path) -> None:
    store = tmp_path / "store"
    start(FileCheckpointStore(store))
    Path("rows").unlink()
    before = bytes_of(store)
    plan = in_sync(WorkflowEngine(FileCheckpointStore(store))).plan(flow, workflow_id="run")
    assert [(each.path, str(each.decision)) for each in plan.steps] == [
        ("rows", "rerun"),
        ("total", "rerun"),
        ("report", "rerun"),
    ]
    assert (ran, bytes_of(store)) == ([], before)
