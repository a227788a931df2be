"""What a step claims is checked when it ends: before its result is saved, before it is told, and before it counts."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import threading
import warnings
from collections.abc import Callable, Generator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from flowckpt import MemoryCheckpointStore, WorkflowEngine, in_sync, step, workflow
from flowckpt.core.dsl import Step, Workflow
from flowckpt.core.records.outputs import CommandOutput
from flowckpt.errors import (
    CommandFailedError,
    EvidenceError,
    EvidenceNotVerifiedError,
    StepDefinitionError,
    StepFailedError,
)
from flowckpt.evidence import EvidencePack, EvidenceVerifier, artifact_exists, command_exit, file_sha256, predicate
from flowckpt.testing import FakeClock

ran: list[Any] = []
asked: list[str] = []
world: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def _fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran.clear()
    asked.clear()
    world.clear()
    monkeypatch.chdir(tmp_path)


def note(value: Any = None) -> Any:
    ran.append(value)
    return value


def write(path: str, text: str) -> str:
    ran.append(f"write {path}")
    Path(path).write_text(text)
    return path


def is_up() -> bool:
    asked.append("is_up")
    if "down" in world:
        raise OSError("no answer")
    return bool(world.get("up"))


def holds() -> bool:
    asked.append("holds")
    return True


def fails() -> bool:
    asked.append("fails")
    return False


def cannot_tell() -> bool:
    asked.append("cannot_tell")
    raise OSError("no answer")


YES, NO, NOBODY = predicate(holds), predicate(fails), predicate(cannot_tell)


def one(made: Step[Any] | Callable[[], Step[Any]]) -> Workflow[Any, Any]:
    @workflow("one")
    def flow() -> Generator[Any, Any, Any]:
        output = yield made if isinstance(made, Step) else made()
        return output.exit_code if isinstance(output, CommandOutput) else output

    return flow


def run(made: Step[Any] | Callable[[], Step[Any]], store: Any = None, **engine: Any) -> Any:
    return WorkflowEngine(store or MemoryCheckpointStore(), **engine).run_sync(one(made), workflow_id="run")


def latest(store: Any) -> Any:
    return asyncio.run(store.load_latest("run"))


# --- a claim that does not hold ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("claim", [NO, NOBODY, artifact_exists("nowhere"), command_exit(0)])
def test_a_step_fails_whose_claim_the_world_denies_or_nobody_can_check(claim: Any) -> None:
    store = MemoryCheckpointStore()
    result = run(step("a").python(note, 1).evidence(claim).checkpoint(), store)
    assert (result.status, result.steps.executed, result.steps.failed, ran) == ("failed", 1, 1, [1])
    assert isinstance(result.error, StepFailedError)
    assert result.error.failed_with(EvidenceNotVerifiedError)
    assert [each.checkpoint_id for each in asyncio.run(store.list_checkpoints("run"))] == ["@failed", "@started"]


def test_the_generator_can_handle_the_failure_and_handles_the_same_one_at_each_replay(
    reopen: Callable[[], Any],
) -> None:
    @workflow("flow")
    def flow() -> Generator[Any, Any, list[str]]:
        caught = []
        try:
            yield step("a").python(note, "a").evidence(NO)
        except StepFailedError as error:
            assert error.failed_with(EvidenceNotVerifiedError)
            assert error.failed_with(EvidenceError)
            assert not error.failed_with(OSError)
            caught.append(error.error_message)
        yield step("b").python(note, "b").checkpoint()
        if "broken" in world:
            raise RuntimeError("later")
        return caught

    world["broken"] = True
    assert WorkflowEngine(reopen()).run_sync(flow, workflow_id="run").status == "failed"
    world.clear()
    asked.clear()
    result = WorkflowEngine(reopen()).resume_sync(flow, workflow_id="run")
    assert (result.steps.executed, result.steps.restored, ran) == (0, 2, ["a", "b"])
    found = latest(reopen()).step_results[0].evidence["verdicts"][0]["error"]
    said = "step 'a' ended, but its evidence does not hold: 0 of 1 claims hold, 1 required"
    assert result.output == [f"{said} ({found})"]
    assert asked == [], "the claims of a failure say nothing about the world of today"


def test_a_failed_claim_is_told_after_the_step_and_nothing_is_told_as_completed_or_saved() -> None:
    async def told() -> list[Any]:
        engine = WorkflowEngine(MemoryCheckpointStore())
        flow = one(step("a").python(note, 1).evidence(YES, NO).checkpoint())
        return [event async for event in engine.execute(flow)]

    events = asyncio.run(told())
    assert [event.kind for event in events[2:5]] == ["StepStarted", "EvidenceFailed", "StepFailed"]
    failed = events[3]
    assert (failed.path, failed.moment, failed.reason) == ("a", "now", "1 of 2 claims hold, 2 required")
    assert len(failed.details) == 1
    assert "fails" in failed.details[0]


def test_what_holds_is_saved_before_it_is_told(reopen: Callable[[], Any]) -> None:
    store = reopen()

    async def told() -> list[Any]:
        flow = one(step("a").python(note, 1).evidence(YES, YES).checkpoint())
        seen = []
        async for event in WorkflowEngine(store).execute(flow, workflow_id="run"):
            saved = await store.load_latest("run")
            seen.append((event.kind, saved.checkpoint_id if saved else None))
        return seen

    assert asyncio.run(told()) == [
        ("WorkflowStarted", None),
        ("CheckpointSaved", "@started"),
        ("StepStarted", "@started"),
        ("EvidenceVerified", "a"),
        ("StepCompleted", "a"),
        ("CheckpointSaved", "a"),
        ("CheckpointSaved", "@completed"),
        ("WorkflowCompleted", "@completed"),
    ]


def test_a_target_that_exists_half_written_is_not_done(reopen: Callable[[], Any]) -> None:
    def writes_half(path: str) -> None:
        ran.append("write")
        Path(path).write_text("1, 2," if "dies" in world else "1, 2, 3")
        if "dies" in world:
            raise OSError("the disk is full")

    flow = one(lambda: step("a").python(writes_half, "rows").evidence(artifact_exists("rows")).checkpoint())
    world["dies"] = True
    assert WorkflowEngine(reopen()).run_sync(flow, workflow_id="run").status == "failed"
    world.clear()
    assert WorkflowEngine(reopen()).resume_sync(flow, workflow_id="run").status == "completed"
    assert (ran, Path("rows").read_text()) == (["write", "write"], "1, 2, 3")
    Path("rows").write_text("1, 2,")  # it exists, and has lost its end
    assert WorkflowEngine(reopen()).resume_sync(flow, workflow_id="run").steps.executed == 1
    assert Path("rows").read_text() == "1, 2, 3"


# --- tries ------------------------------------------------------------------------------------------------------------


def comes_up_at(tries: int) -> int:
    ran.append("try")
    world["up"] = len(ran) >= tries
    return len(ran)


def test_a_claim_that_fails_fails_the_try_and_the_next_one_is_checked_anew(reopen: Callable[[], Any]) -> None:
    clock = FakeClock()
    engine = WorkflowEngine(reopen(), clock=clock)
    made = step("a").python(comes_up_at, 3).evidence(predicate(is_up)).retry(5, backoff=1).checkpoint()

    async def told() -> list[Any]:
        return [event async for event in engine.execute(one(made), workflow_id="run")]

    events = asyncio.run(told())
    assert [event.kind for event in events[2:-2]] == [
        "StepStarted",
        "EvidenceFailed",
        "StepRetrying",
        "EvidenceFailed",
        "StepRetrying",
        "EvidenceVerified",
        "StepCompleted",
        "CheckpointSaved",
    ]
    assert events[-1].output == 3
    assert clock.slept == [1, 2]
    recorded = latest(reopen()).step_results[0]
    assert (recorded.tries, recorded.evidence["outcome"]) == (3, "verified")
    assert len(recorded.evidence["verdicts"]) == 1


@pytest.mark.parametrize(
    ("on", "tries"),
    [(Exception, 3), (EvidenceError, 3), (EvidenceNotVerifiedError, 3), ((OSError, EvidenceError), 3), (OSError, 1)],
)
def test_a_failed_claim_is_tried_again_where_its_error_is_worth_it(on: Any, tries: int) -> None:
    result = run(step("a").python(note, 1).evidence(NO).retry(3, on=on))
    assert (result.error.tries, len(ran), len(asked)) == (tries, tries, tries)


def test_a_try_that_fails_by_itself_is_not_asked_for_evidence() -> None:
    def raises() -> None:
        raise OSError("down")

    assert run(step("a").python(raises).evidence(YES).retry(3)).error.failed_with(OSError)
    assert asked == []


# --- what is recorded -------------------------------------------------------------------------------------------------

AT = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)


def test_facts_verdicts_and_times_are_in_the_record_of_the_step(reopen: Callable[[], Any]) -> None:
    verifier = EvidenceVerifier(clock=FakeClock(AT))
    made = step("a").python(write, "rows", "3 1 2").evidence(file_sha256("rows"), YES).checkpoint()
    assert run(made, reopen(), verifier=verifier).status == "completed"
    for checkpoint in ("a", "@completed"):
        recorded = asyncio.run(reopen().load("run", checkpoint)).step_results[0]
        assert recorded.output == "rows"
        assert recorded.evidence["outcome"] == "verified"
        assert recorded.evidence["verdicts"] == [{"status": "verified", "verified_at": "2026-03-04T05:06:07Z"}] * 2
        claims = EvidencePack.from_document(recorded.evidence["pack"]).evidence_list
        assert [claim.is_captured for claim in claims] == [True, True]
        assert claims[0].expected["sha256"] == hashlib.sha256(b"3 1 2").hexdigest()
        assert claims[0].captured is not None
        assert claims[0].captured.at == AT


def test_the_record_of_a_failure_says_which_claim_did_not_hold_and_why(reopen: Callable[[], Any]) -> None:
    verifier = EvidenceVerifier(clock=FakeClock(AT))
    run(step("a").python(note, 1).evidence(YES, artifact_exists("nowhere"), NOBODY), reopen(), verifier=verifier)
    recorded = latest(reopen()).step_results[0]
    assert (recorded.success, recorded.output, recorded.evidence["outcome"]) == (False, None, "failed")
    verdicts = recorded.evidence["verdicts"]
    assert [each["status"] for each in verdicts] == ["verified", "failed", "cannot_check"]
    assert {each["verified_at"] for each in verdicts} == {"2026-03-04T05:06:07Z"}
    assert "error" not in verdicts[0]
    assert verdicts[1]["error"] == "nowhere does not exist"
    assert "no answer" in verdicts[2]["error"]


def test_the_checkpoint_of_a_step_holds_the_state_after_it(reopen: Callable[[], Any]) -> None:
    @workflow("flow")
    def flow() -> Generator[Any, Any, None]:
        yield step("before").python(note, "before").evidence(YES)
        yield step("tool").python(write, "out", "1").evidence(file_sha256("out")).checkpoint("mine")
        yield step("once").python(note, "once").evidence(YES).at_most_once()

    WorkflowEngine(reopen()).run_sync(flow, workflow_id="run")
    for checkpoint, paths in (("mine", ["before", "tool"]), ("once", ["before", "tool", "once"])):
        saved = asyncio.run(reopen().load("run", checkpoint))
        assert [result.path for result in saved.step_results] == paths
        assert {result.evidence["outcome"] for result in saved.step_results} == {"verified"}
        assert saved.in_flight == ()


# --- functions of the result ------------------------------------------------------------------------------------------

GOOD = {
    "a claim": lambda out: artifact_exists(out),
    "a list": lambda out: [artifact_exists(out), YES],
    "a tuple": lambda out: (artifact_exists(out), YES),
    "a generator": lambda out: (each for each in (artifact_exists(out), YES)),
    "a pack": lambda out: EvidencePack([artifact_exists(out), NO], allow_partial=True, min_verified=1),
}
BAD: dict[str, Any] = {
    "text": (lambda out: "rows", EvidenceError),
    "a number": (lambda out: 5, EvidenceError),
    "nothing": (lambda out: None, EvidenceError),
    "a mapping": (lambda out: {"a": YES}, EvidenceError),
    "bytes": (lambda out: b"x", EvidenceError),
    "an object": (lambda out: object(), EvidenceError),
    "a list of numbers": (lambda out: [1], EvidenceError),
    "a claim and more": (lambda out: [YES, 3], EvidenceError),
    "packs in a list": (lambda out: [EvidencePack([YES])], EvidenceError),
    "an error": (lambda out: world["missing"], KeyError),
    "no claim at all": (lambda out: [], EvidenceNotVerifiedError),
    "an empty pack": (lambda out: EvidencePack([]), EvidenceNotVerifiedError),
    "a claim that fails": (lambda out: NO, EvidenceNotVerifiedError),
    "a pack of which too little holds": (
        lambda out: EvidencePack([YES, NO], allow_partial=True, min_verified=2),
        EvidenceNotVerifiedError,
    ),
}


@pytest.mark.parametrize("claims", GOOD.values(), ids=GOOD)
def test_a_function_of_the_result_may_return(claims: Any, reopen: Callable[[], Any]) -> None:
    made = step("a").python(write, "rows", "1").evidence(claims).checkpoint()
    assert run(made, reopen()).output == "rows"
    Path("rows").unlink()
    plan = in_sync(WorkflowEngine(reopen())).plan(one(made), workflow_id="run")
    assert [str(each.decision) for each in plan.steps] == ["rerun"], "what it claimed is in the record"


@pytest.mark.parametrize(("claims", "error"), BAD.values(), ids=BAD)
def test_a_step_fails_whose_function_of_the_result_returns(claims: Any, error: type[Exception]) -> None:
    result = run(step("a").python(note, 1).evidence(claims).checkpoint())
    assert result.status == "failed"
    assert result.error.failed_with(error)
    assert result.error.failed_with(EvidenceNotVerifiedError) is (error is EvidenceNotVerifiedError)
    assert ran == [1]


def test_an_async_function_is_no_function_of_the_result() -> None:
    async def claims(out: Any) -> Any:
        return YES

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # Python says, too, that nobody awaited it
        result = run(step("a").python(note, 1).evidence(claims))
        gc.collect()
    assert result.error.failed_with(EvidenceError)
    assert "(coroutine), not a claim" in result.error.error_message


def test_a_pack_made_by_a_function_stands_alone() -> None:
    result = run(step("a").python(note, 1).evidence(YES, lambda out: EvidencePack([YES])))
    assert "got a pack and other arguments" in result.error.error_message


def test_a_function_of_the_result_changes_neither_what_is_recorded_nor_what_the_generator_gets(
    reopen: Callable[[], Any],
) -> None:
    def claims(out: list[int]) -> Any:
        out.append(99)
        return YES

    def rows() -> list[int]:
        return [1, 2]

    assert run(step("a").python(rows).evidence(claims).checkpoint(), reopen()).output == [1, 2]
    assert latest(reopen()).step_results[0].output == [1, 2]


def test_functions_get_the_result_as_a_resumed_run_would_see_it() -> None:
    seen: list[Any] = []

    def sees(out: Any) -> Any:
        seen.append(out)
        return YES

    def point() -> tuple[int, int]:
        return (1, 2)

    run(step("a").python(point).evidence(sees))
    assert seen == [(1, 2)]
    assert type(seen[0]) is tuple


# --- policies ---------------------------------------------------------------------------------------------------------

SOME = {"require_all": False}
POLICIES = [
    ((YES,), {}, True),
    ((YES, YES), {}, True),
    ((YES, NO), {}, False),
    ((YES, NOBODY), {}, False),
    ((YES, NO), SOME, True),
    ((YES, NOBODY), SOME, True),
    ((NO, NO), SOME, False),
    ((NO, NOBODY), SOME, False),
    ((YES, YES, NO), {"min_verified": 2}, True),
    ((YES, NO, NO), {"min_verified": 2}, False),
    ((YES, NOBODY, NO), {"min_verified": 2}, False),
    ((EvidencePack([YES, NO], allow_partial=True, min_verified=0),), {}, True),
    ((EvidencePack([NO, NO], allow_partial=True, min_verified=0),), {}, False),
    ((EvidencePack([NO], require_all=False),), {}, False),
    ((EvidencePack([]),), {}, False),
    ((EvidencePack([], require_all=False, allow_partial=True),), {}, False),
]


@pytest.mark.parametrize(("claims", "policy", "is_done"), POLICIES)
def test_nothing_succeeds_without_evidence_whatever_the_policy_allows(
    claims: tuple[Any, ...], policy: dict[str, Any], is_done: bool
) -> None:
    result = run(step("a").python(note, 1).evidence(*claims, **policy))
    assert result.status == ("completed" if is_done else "failed")
    assert is_done or result.error.failed_with(EvidenceNotVerifiedError)


def test_more_claims_than_there_are_cannot_be_asked_for() -> None:
    with pytest.raises(StepDefinitionError, match="can never hold"):
        step("a").python(note, 1).evidence(YES, min_verified=2)
    result = run(step("a").python(note, 1).evidence(lambda out: [YES], min_verified=2))
    assert result.error.failed_with(EvidenceError)
    assert "with only 1 claims can never hold" in result.error.error_message


# --- transient, ephemeral ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("up", [True, False])
def test_a_transient_claim_must_hold_when_the_step_ends_and_is_never_asked_again(
    up: bool, reopen: Callable[[], Any]
) -> None:
    made = step("a").python(note, 1).evidence(predicate(is_up).transient()).checkpoint()
    world["up"] = up
    assert run(made, reopen()).status == ("completed" if up else "failed")
    if up:
        world["up"] = False
        asked.clear()
        result = WorkflowEngine(reopen()).resume_sync(one(made), workflow_id="run")
        assert (result.steps.restored, ran, asked) == (1, [1], [])


@pytest.mark.parametrize("needed", [1, 2])
@pytest.mark.parametrize("was_up", [True, False])
def test_a_transient_claim_of_a_partial_pack_counts_as_it_did_when_the_step_ended(
    needed: int, was_up: bool, tmp_path: Path, reopen: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "made").touch()
    others = [artifact_exists("never"), artifact_exists("made"), artifact_exists("never 2")]
    made = step("a").python(note, 1).evidence(predicate(is_up).transient(), *others, min_verified=needed).checkpoint()
    world["up"] = was_up
    holds = was_up + 1 >= needed
    assert run(made, reopen()).status == ("completed" if holds else "failed")
    if not holds:
        return
    world["up"] = False
    engine = WorkflowEngine(reopen())
    assert engine.resume_sync(one(made), workflow_id="run").steps.restored == 1
    (tmp_path / "made").unlink()
    engine.resume_sync(one(made), workflow_id="run")
    assert ran == [1] if was_up and needed == 1 else ran == [1, 1]


def test_the_claims_of_an_ephemeral_step_are_checked_each_time_it_is_run_and_recorded_nowhere(
    reopen: Callable[[], Any],
) -> None:
    @workflow("flow")
    def flow() -> Generator[Any, Any, str]:
        yield step("a").python(note, "a").checkpoint()
        model = yield step("model").python(object).ephemeral().evidence(lambda made: predicate(is_up))
        if "broken" in world:
            raise RuntimeError("later")
        return type(model).__name__

    world.update(up=True, broken=True)
    WorkflowEngine(reopen()).run_sync(flow, workflow_id="run")
    assert asked == ["is_up"]
    world.clear()
    result: Any = WorkflowEngine(reopen()).resume_sync(flow, workflow_id="run")
    assert result.error.failed_with(EvidenceNotVerifiedError)
    assert asked == ["is_up"] * 2
    world["up"] = True
    assert WorkflowEngine(reopen()).resume_sync(flow, workflow_id="run").output == "object"
    assert asked == ["is_up"] * 3
    assert [each.path for each in latest(reopen()).step_results] == ["a"]
    assert ran == ["a"]


# --- commands ---------------------------------------------------------------------------------------------------------

COMMANDS = [  # what it returns, claims, how it fails or None
    (0, (), None),
    (2, (), CommandFailedError),
    (0, (YES,), None),
    (2, (YES,), CommandFailedError),
    (0, (NO,), EvidenceNotVerifiedError),
    (2, (NO,), CommandFailedError),
    (0, (command_exit(),), None),
    (2, (command_exit(2),), None),
    (137, (command_exit(137),), None),
    (2, (command_exit(2), YES), None),
    (2, (command_exit(2), NO), EvidenceNotVerifiedError),
    (0, (command_exit(2),), EvidenceNotVerifiedError),
    (1, (command_exit(137),), EvidenceNotVerifiedError),
    (0, (command_exit(137),), EvidenceNotVerifiedError),
    (1, (command_exit(0),), EvidenceNotVerifiedError),
    (2, (lambda out: command_exit(out.exit_code),), None),
    (2, (lambda out: YES,), CommandFailedError),
    (3, (EvidencePack([command_exit(2), command_exit(3)], allow_partial=True, min_verified=1),), None),
    (4, (EvidencePack([command_exit(2), command_exit(3)], allow_partial=True),), EvidenceNotVerifiedError),
]


@pytest.mark.parametrize(("code", "claims", "error"), COMMANDS)
def test_a_command_succeeds_with_0_or_with_the_very_code_that_it_claims(
    code: int, claims: tuple[Any, ...], error: type[Exception] | None
) -> None:
    made = step("a").command(["sh", "-c", f"exit {code}"])
    result = run(made.evidence(*claims) if claims else made)
    if error is None:
        assert (result.status, result.output) == ("completed", code)
    else:
        assert [each for each in (CommandFailedError, EvidenceError) if result.error.failed_with(each)] == [
            CommandFailedError if error is CommandFailedError else EvidenceError
        ]
        assert result.error.failed_with(error)


@pytest.mark.parametrize("code", [True, "0", 0.0, None])
def test_a_code_is_a_whole_number_and_true_is_none(code: Any) -> None:
    with pytest.raises(EvidenceError, match="is not an exit code"):
        command_exit(code)


def test_a_code_that_a_record_makes_up_is_compared_with_what_the_command_returned() -> None:
    claim = command_exit(0)
    made_up = type(claim)("command_exit", "the command returned 0", {"exit_code": 0}, {"actual_exit_code": 0})
    result = run(step("a").command(["sh", "-c", "exit 3"]).evidence(made_up))
    assert result.error.failed_with(EvidenceNotVerifiedError)
    assert "returned 3, but the claim's metadata has 0" in result.error.error_message


@pytest.mark.parametrize("code", [0, 2, 137])
def test_a_resume_compares_with_the_code_that_was_returned_then(code: int, reopen: Callable[[], Any]) -> None:
    made = step("a").command(["sh", "-c", f"exit {code}"]).evidence(command_exit(code)).checkpoint()
    assert run(made, reopen()).status == "completed"
    assert latest(reopen()).step_results[0].evidence["exit_code"] == code
    plan = in_sync(WorkflowEngine(reopen())).plan(one(made), workflow_id="run")
    assert [str(each.decision) for each in plan.steps] == ["reuse"]


# --- where it is checked ----------------------------------------------------------------------------------------------


async def test_an_applications_loop_stays_live_while_a_claim_is_checked() -> None:
    entered, gate = threading.Event(), threading.Event()
    world["gate"] = (entered, gate)
    made = step("a").python(note, 1).evidence(predicate(waits_at_the_gate))
    task = asyncio.create_task(WorkflowEngine(MemoryCheckpointStore()).run(one(made)))
    while not entered.is_set():  # this loop turns while the claim is being checked
        await asyncio.sleep(0)
        assert not task.done()
    gate.set()
    assert (await task).status == "completed"


def waits_at_the_gate() -> bool:
    entered, gate = world["gate"]
    entered.set()
    return bool(gate.wait(120))
