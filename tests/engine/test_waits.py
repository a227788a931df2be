"""Steps that wait: what ends them, what they return, what a resume finds, and what is saved when."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Generator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal, NamedTuple

import attrs
import pytest

from flowckpt import (
    Approval,
    FileCheckpointStore,
    MemoryCheckpointStore,
    RunOptions,
    WorkflowEngine,
    in_sync,
    parallel,
    step,
    workflow,
)
from flowckpt.core.records import Reason, Status, Wait, WaitKind
from flowckpt.errors import (
    ApprovalRejectedError,
    ApprovalStaleError,
    CheckpointCorruptedError,
    CheckpointNotFoundError,
    EvidenceNotVerifiedError,
    InputError,
    RunSuspendedError,
    SettingError,
    SignalRefusedError,
    StepDefinitionError,
    StepFailedError,
    StepTimeoutError,
)
from flowckpt.events import ApprovalVoided, CheckpointSaved, SignalSetAside, WorkflowSuspended, WorkflowWaiting
from flowckpt.evidence import EvidencePack, EvidenceVerifier, artifact_exists, file_sha256
from flowckpt.evidence.checks import files as file_checks
from flowckpt.testing import FakeClock

START = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
did: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_done():
    did.clear()


def do(what: Any) -> Any:
    did.append(what)
    return what


@attrs.frozen
class Order:
    number: int
    paid: bool = False


class World:
    """A store, a clock, and an engine that starts again for each resume, as a new process does."""

    def __init__(self, reopen: Any) -> None:
        self.clock = FakeClock(START)
        self.reopen = reopen
        self.events: list[Any] = []

    @property
    def engine(self) -> WorkflowEngine:
        return WorkflowEngine(self.reopen(), clock=self.clock)

    def run(self, what: Any, **options: Any) -> Any:
        return self._drive(lambda engine: engine.prepare(what, "run", RunOptions(**options), {}))

    def resume(self, what: Any, **options: Any) -> Any:
        return self._drive(lambda engine: engine.prepare_resume(what, "run", RunOptions(**options), {}))

    def _drive(self, prepare: Any) -> Any:
        engine = self.engine
        self.events = []
        return engine.drive_sync(prepare(engine), on_event=self.events.append)

    def latest(self) -> Any:
        return asyncio.run(self.reopen().load_latest("run"))

    def sequences(self) -> list[int]:
        return [each.sequence for each in asyncio.run(self.reopen().list_checkpoints("run"))]

    def info(self) -> Any:
        return asyncio.run(self.reopen().describe_run("run"))

    def pending(self) -> list[Any]:
        return [each.name for each in asyncio.run(self.reopen().signals("run"))]

    def told(self, kind: type) -> list[Any]:
        return [event for event in self.events if type(event) is kind]


@pytest.fixture
def world(reopen) -> World:
    return World(reopen)


# --- sleeping --------------------------------------------------------------------------------------------------------


@workflow
def naps(seconds: float = 7200.0) -> Generator[Any, Any, list[Any]]:
    before = yield step("before").python(do, "before").checkpoint()
    slept = yield step("nap").sleep(7200)
    after = yield step("after").python(do, "after")
    return [before, slept, after]


def test_a_long_sleep_suspends_the_run_and_says_until_when(world):
    result = world.run(naps)
    assert (result.status, result.output, result.error) == (Status.SUSPENDED, None, None)
    assert result.waits == (Wait("nap", WaitKind.SLEEP, "", START, START + 2 * HOUR),)
    assert result.due_at == START + 2 * HOUR
    assert did == ["before"]
    assert [type(event) for event in world.events[-1:]] == [WorkflowSuspended]
    assert (world.events[-1].waits, world.events[-1].due_at) == (result.waits, START + 2 * HOUR)
    latest = world.latest()
    assert (latest.reason, latest.status) == (Reason.SUSPENDED, Status.SUSPENDED)
    info = world.info()
    assert (info.status, info.waits, info.due_at) == (Status.SUSPENDED, result.waits, START + 2 * HOUR)
    with pytest.raises(RunSuspendedError, match="nap sleeps until 2026-01-01 02:00:00 UTC"):
        result.unwrap()


def test_the_end_of_a_sleep_stays_where_it_is_however_often_the_run_is_resumed(world):
    world.run(naps)
    for _ in range(3):
        world.clock.advance(1800)
        assert world.resume(naps).due_at == START + 2 * HOUR
    world.clock.advance(1800)
    result = world.resume(naps)
    assert (result.status, result.output) == (Status.COMPLETED, ["before", None, "after"])
    assert did == ["before", "after"]
    assert world.latest().metadata.get("waits") is None


def test_a_resume_that_finds_nothing_new_saves_nothing(world):
    first = world.run(naps)
    saved = world.sequences()
    for _ in range(3):
        result = world.resume(naps)
        assert (result.status, result.attempt) == (Status.SUSPENDED, first.attempt)
        assert world.sequences() == saved
    assert world.latest().attempt == 1


def test_a_sleep_that_is_over_before_the_resume_goes_on_at_once(world):
    world.run(naps)
    world.clock.advance(1_000_000)
    assert world.resume(naps).status == Status.COMPLETED
    assert world.clock.slept == []


def test_a_clock_that_is_set_back_makes_a_sleep_longer_and_never_shorter(world):
    world.run(naps)
    world.clock.set(START - 10 * HOUR)
    assert world.resume(naps).due_at == START + 2 * HOUR
    world.clock.set(START + 2 * HOUR)
    assert world.resume(naps).status == Status.COMPLETED


def test_a_short_sleep_is_slept_in_the_process_and_is_durable_before(world):
    @workflow
    def short() -> Generator[Any, Any, int]:
        yield step("nap").sleep(timedelta(seconds=30))
        return 1

    assert world.run(short).output == 1
    assert sum(world.clock.slept) == pytest.approx(30)
    reasons = [each.reason for each in asyncio.run(world.reopen().list_checkpoints("run"))]
    assert reasons == [Reason.COMPLETED, Reason.SUSPENDED, Reason.STARTED]
    assert [(event.waits[0].path, event.due_at) for event in world.told(WorkflowWaiting)] == [
        ("nap", START + timedelta(seconds=30))
    ]


@pytest.mark.parametrize("stay", [0, 7199.0])
def test_a_process_that_may_not_stay_so_long_does_not_begin_to(world, stay):
    assert world.run(naps, stay=stay).status == Status.SUSPENDED
    assert world.clock.slept == []


def test_the_seconds_to_stay_are_counted_over_all_waits(world):
    @workflow
    def two() -> Generator[Any, Any, None]:
        yield step("one").sleep(100)
        yield step("two").sleep(100)

    assert [wait.path for wait in world.run(two, stay=150).waits] == ["two"]
    assert sum(world.clock.slept) == pytest.approx(100)
    assert world.resume(two, stay=100).status == Status.COMPLETED


def test_a_process_that_may_stay_sleeps_as_long_as_it_takes(world):
    assert world.run(naps, stay=float("inf")).output == ["before", None, "after"]
    assert sum(world.clock.slept) == pytest.approx(7200)


@pytest.mark.parametrize("moment", [START + 5 * HOUR, (START + 5 * HOUR).astimezone(None)], ids=["utc", "local"])
@pytest.mark.parametrize("keyword", [True, False])
def test_a_sleep_may_have_its_end_given(world, moment, keyword):
    @workflow
    def until() -> Generator[Any, Any, None]:
        yield step("nap").sleep(until=moment) if keyword else step("nap").sleep(moment)

    assert world.run(until).due_at == START + 5 * HOUR
    world.clock.advance(5 * 3600)
    assert world.resume(until).status == Status.COMPLETED


@pytest.mark.parametrize("how", [0, START - HOUR, timedelta(0)])
def test_a_sleep_whose_end_has_passed_does_not_wait(world, how):
    @workflow
    def at_once() -> Generator[Any, Any, str]:
        yield step("nap").sleep(how).checkpoint()
        return "done"

    assert world.run(at_once).output == "done"
    assert world.clock.slept == []


def test_a_sleep_is_met_anew_where_a_step_before_it_runs_again(world):
    world.run(naps)
    world.clock.advance(3600)
    assert world.resume(naps, from_step="before").due_at == START + 3 * HOUR
    assert did == ["before", "before"]


def test_the_generators_finally_blocks_run_when_the_run_is_suspended(world):
    @workflow
    def tidy() -> Generator[Any, Any, None]:
        try:
            yield step("nap").sleep(7200)
        finally:
            did.append("tidied")

    world.run(tidy)
    assert did == ["tidied"]


# --- signals ---------------------------------------------------------------------------------------------------------


@workflow
def orders() -> Generator[Any, Any, list[Any]]:
    first = yield from step("first").wait("order", type=Order)
    yield step("ship").python(do, first.number)
    second = yield step("second").wait("order")
    return [(first.number, first.paid), second]


def test_a_signal_continues_the_run_and_its_data_come_out_as_the_type_says(world):
    assert world.run(orders).waits[0].name == "order"
    sent = in_sync(world.engine).signal("run", "order", {"number": 7}, by="ann")
    assert (sent.is_new, sent.is_awaited, sent.pending_before, sent.owner) == (True, True, 0, "")
    assert world.resume(orders).waits[0].path == "second"
    assert did == [7]
    in_sync(world.engine).signal("run", "order", [1, "two"])
    result = world.resume(orders)
    assert result.output == [(7, False), [1, "two"]]
    assert world.pending() == []


def test_a_signal_that_comes_early_is_kept_and_a_second_one_waits_for_the_next_wait(world):
    world.run(naps)
    for number in (1, 2):
        sent = in_sync(world.engine).signal("run", "order", {"number": number})
        assert (sent.is_awaited, sent.pending_before) == (False, number - 1)
    assert world.pending() == ["order", "order"]


def test_signals_are_taken_in_the_order_in_which_they_were_sent(world):
    world.run(orders)
    for number in range(3):
        in_sync(world.engine).signal("run", "order", {"number": number})
        world.clock.advance(1)
    assert world.resume(orders).output == [(0, False), {"number": 1}]
    assert world.pending() == ["order"]


def test_a_signal_of_another_name_ends_nothing(world):
    world.run(orders)
    in_sync(world.engine).signal("run", "orders")
    in_sync(world.engine).signal("run", "Order")
    saved = world.sequences()
    assert world.resume(orders).status == Status.SUSPENDED
    assert world.sequences() == saved


def test_a_signal_sent_again_under_its_id_is_there_once_also_after_it_was_taken(world):
    world.run(orders)
    assert in_sync(world.engine).signal("run", "order", {"number": 1}, signal_id="monday").is_new
    assert not in_sync(world.engine).signal("run", "order", {"number": 2}, signal_id="monday").is_new
    assert world.resume(orders).waits[0].path == "second"
    in_sync(world.engine).signal("run", "order", {"number": 2}, signal_id="monday")
    assert world.resume(orders).waits[0].path == "second"
    in_sync(world.engine).signal("run", "order", 5, signal_id="tuesday")
    assert world.resume(orders).output == [(1, False), 5]


def test_a_signal_to_a_run_that_is_complete_is_refused_and_to_none_too(world):
    world.run(naps, stay=10_000)
    with pytest.raises(SignalRefusedError, match="the run is complete") as refused:
        in_sync(world.engine).signal("run", "order")
    assert (refused.value.workflow_id, refused.value.name) == ("run", "order")
    assert world.pending() == []
    with pytest.raises(CheckpointNotFoundError):
        in_sync(world.engine).signal("nope", "order")
    with pytest.raises(InputError, match="blank"):
        in_sync(world.engine).signal("run", " ")


@workflow
def two_orders() -> Generator[Any, Any, list[int]]:
    first = yield from step("first").wait("order", type=Order)
    second = yield from step("second").wait("order", type=Order)
    return [first.number, second.number]


def test_a_signal_that_does_not_fit_its_type_is_set_aside_and_the_step_waits_for_another(world, caplog):
    world.run(two_orders)
    with pytest.raises(SignalRefusedError, match="number is 'seven'"):  # the run waits for it, so the type is known
        in_sync(world.engine).signal("run", "order", {"number": "seven"})
    in_sync(world.engine).signal("run", "order", Order(7))
    in_sync(world.engine).signal("run", "order", {"number": "seven"}, by="ann", signal_id="wrong")  # for a later wait
    assert world.resume(two_orders).status == Status.SUSPENDED
    (event,) = [each for each in world.events if isinstance(each, SignalSetAside)]
    assert (event.path, event.name, event.by, event.signal_id) == (
        world.resume(two_orders).waits[0].path,
        "order",
        "ann",
        "wrong",
    )
    assert caplog.text.count("is set aside") == 1 and "ann" in caplog.text  # no resume looks at it again
    in_sync(world.engine).signal("run", "order", Order(8, paid=True))
    assert world.resume(two_orders).output == [7, 8]


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (int, "no"),
        (int, True),
        (int, None),
        (int, 3.0),
        (bool, "x"),
        (str, 5),
        (list[int], ["a"]),
        (list[str], "abc"),
        (int | None, "s"),
        (dict[str, int], {"a": "b"}),
        (tuple[int, str], [1, 2]),
        (Literal["yes", "no"], "maybe"),
        (Order, {"number": True}),
    ],
    ids=str,
)
def test_data_of_json_s_own_types_are_taken_at_their_word(world, kind, data, caplog):
    @workflow
    def typed():
        return (yield from step("w").wait("x", type=kind))

    world.engine.run_sync(typed, workflow_id="other")
    if kind is not Order:  # what only the program knows is seen when it is taken
        with pytest.raises(SignalRefusedError, match="'w' waits for it, and its data"):
            in_sync(world.engine).signal("other", "x", data)
        assert asyncio.run(world.reopen().signals("other")) == []
    KIND.append(kind)
    world.run(early)
    in_sync(world.engine).signal("run", "x", data, by="ann")
    in_sync(world.engine).signal("run", "go")
    assert world.resume(early).status == Status.SUSPENDED
    assert "ann" in caplog.text


KIND: list[Any] = []


@workflow
def early():
    yield step("first").wait("go")
    return (yield from step("w").wait("x", type=KIND[-1]))


@pytest.mark.parametrize(
    ("kind", "data", "value"),
    [
        (int, 3, 3),
        (float, 3, 3),
        (int | None, None, None),
        (list[int], [1], [1]),
        (tuple[int, ...], [1, 2], (1, 2)),
        (dict[str, list[int]], {"a": [1]}, {"a": [1]}),
        (Literal["yes", "no"], "no", "no"),
        (type(None), None, None),
        (datetime, START, START),
        (list[Order], [{"number": 1}], [Order(1)]),
    ],
    ids=str,
)
def test_data_that_fit_their_type_come_out_as_it_says(world, kind, data, value):
    found: list[Any] = []

    @workflow
    def typed() -> Generator[Any, Any, None]:
        found.append((yield from step("w").wait("x", type=kind)))

    world.run(typed)
    in_sync(world.engine).signal("run", "x", data)
    assert world.resume(typed).status == Status.COMPLETED
    assert (found, type(found[0])) == ([value], type(value))


def test_a_type_that_was_edited_is_asked_of_the_next_message(world):
    @workflow(name="typed")
    def typed():
        return (yield from step("w").wait("x", type=int))

    @workflow(name="typed")
    def edited():
        return (yield from step("w").wait("x", type=str))

    world.run(typed)
    world.resume(edited)
    in_sync(world.engine).signal("run", "x", "no")
    assert world.resume(edited).output == "no"


def test_a_message_for_a_later_wait_is_not_held_to_the_type_of_the_one_before(world):
    @workflow
    def two():
        return [(yield step("a").wait("x", type=int)), (yield step("b").wait("x", type=str))]

    world.run(two)
    in_sync(world.engine).signal("run", "x", 1)
    in_sync(world.engine).signal("run", "x", "text")
    assert world.resume(two).output == [1, "text"]


def test_an_answered_wait_is_asked_again_after_going_back_behind_it(world):
    world.run(orders)
    in_sync(world.engine).signal("run", "order", {"number": 1})
    assert world.resume(orders).waits[0].path == "second"
    assert world.resume(orders, from_step="first").waits[0].path == "first"
    in_sync(world.engine).signal("run", "order", {"number": 2})
    world.resume(orders)
    assert did == [1, 2]


def test_a_run_that_is_rolled_back_waits_for_what_it_waited_for_then(world):
    world.run(orders)
    first = world.latest().sequence
    in_sync(world.engine).signal("run", "order", {"number": 1})
    world.resume(orders)
    asyncio.run(world.engine.rollback("run", str(first)))
    assert world.resume(orders).waits[0].path == "first"


def test_a_fork_waits_for_itself(world):
    world.run(naps)
    world.clock.advance(3600)
    engine = world.engine
    in_sync(engine).fork("run", new_id="other")
    result = engine.resume_sync(naps, workflow_id="other")
    assert result.due_at == START + 3 * HOUR
    assert world.resume(naps).due_at == START + 2 * HOUR


def test_a_staying_process_takes_a_signal_that_comes_meanwhile(world):
    store = MemoryCheckpointStore()
    clock = FakeClock(START)
    engine = WorkflowEngine(store, clock=clock)

    async def both() -> Any:
        running = asyncio.ensure_future(engine.run(orders, workflow_id="run", options=RunOptions(stay=3600)))
        while (info := await store.describe_run("run")) is None or info.status != Status.SUSPENDED:
            await asyncio.sleep(0)
        sent = await engine.signal("run", "order", {"number": 1})
        assert sent.owner
        return await running

    result = asyncio.run(both())
    assert [wait.path for wait in result.waits] == ["second"]
    assert clock.now() >= START + HOUR


def test_a_store_that_delivers_no_signals_says_so_where_one_is_waited_for():
    class Plain:
        def __init__(self) -> None:
            self._inner = MemoryCheckpointStore()
            for name in ("save", "load", "load_latest", "clear", "list_checkpoints"):
                setattr(self, name, getattr(self._inner, name))

    engine = WorkflowEngine(Plain(), clock=FakeClock(START))  # type: ignore[arg-type]
    result = engine.run_sync(orders, workflow_id="run")
    assert result.status == Status.FAILED
    assert isinstance(result.error, SettingError)
    assert engine.run_sync(naps, workflow_id="naps").status == Status.SUSPENDED
    with pytest.raises(SettingError):
        in_sync(engine).signal("naps", "go")


def test_a_damaged_message_refuses_the_resume_and_loses_nothing(tmp_path):
    store = FileCheckpointStore(tmp_path)
    engine = WorkflowEngine(store, clock=FakeClock(START))
    engine.run_sync(resigned, workflow_id="run")
    for number in (1, 2):
        in_sync(engine).signal("run", "go", {"number": number}, signal_id=f"{number}")
    files = sorted((tmp_path / "runs" / "run" / "signals").iterdir())
    content = files[0].read_bytes()
    files[0].write_bytes(content[:-5])
    with pytest.raises(CheckpointCorruptedError, match="signals/"):
        engine.resume_sync(resigned, workflow_id="run")
    files[0].write_bytes(content)
    assert engine.resume_sync(resigned, workflow_id="run").output == Order(1)


# --- deadlines -------------------------------------------------------------------------------------------------------


@workflow
def patient() -> Generator[Any, Any, Any]:
    try:
        return (yield step("go").wait("go", timeout=3600))
    except StepFailedError as error:
        assert error.failed_with(StepTimeoutError)
        assert error.failed_with(TimeoutError)
        return (yield step("instead").python(do, "instead"))


@workflow
def resigned() -> Generator[Any, Any, Order | None]:
    order = yield from step("go").wait("go", type=Order, timeout=HOUR, default=None)
    return order


@pytest.mark.parametrize(("what", "late"), [(patient, "instead"), (resigned, None)], ids=["fails", "returns"])
def test_a_wait_whose_time_is_over_has_an_outcome_of_its_own_and_keeps_it(world, what, late):
    assert world.run(what).due_at == START + HOUR
    world.clock.advance(3601)
    in_sync(world.engine).signal("run", "go", {"number": 1})  # too late: an uninterrupted run would have continued
    result = world.resume(what)
    assert (result.status, result.output) == (Status.COMPLETED, late)
    assert world.resume(what).output == late
    assert world.pending() == ["go"]


@pytest.mark.parametrize(("what", "in_time"), [(patient, {"number": 1}), (resigned, Order(1))], ids=["plain", "typed"])
def test_a_signal_that_was_sent_in_time_counts_however_late_the_run_is_resumed(world, what, in_time):
    world.run(what)
    world.clock.advance(3599)
    in_sync(world.engine).signal("run", "go", {"number": 1})
    world.clock.advance(10_000)
    assert world.resume(what).output == in_time
    assert world.resume(what).output == in_time


def test_a_run_that_failed_by_a_timeout_waits_anew_when_it_is_resumed(world):
    @workflow
    def strict() -> Generator[Any, Any, Any]:
        return (yield step("go").wait("go", timeout=3600))

    world.run(strict)
    world.clock.advance(3600)
    assert world.resume(strict).status == Status.FAILED
    assert world.resume(strict).due_at == START + 2 * HOUR


# --- approvals -------------------------------------------------------------------------------------------------------


@workflow
def release() -> Generator[Any, Any, Approval]:
    yield step("build").python(do, "build").checkpoint()
    approval = yield from step("review").approval(of=[file_sha256(did_file())])
    yield step("publish").python(do, "published")
    return approval


FILE: list[Path] = []


def did_file() -> Path:
    return FILE[-1]


@pytest.fixture
def report(tmp_path) -> Path:
    FILE.append(tmp_path / "report.html")
    FILE[-1].write_text("first")
    return FILE[-1]


def test_an_approval_records_who_when_why_and_what(world, report):
    wait = world.run(release).waits[0]
    assert (wait.kind, wait.name) == (WaitKind.APPROVAL, "review")
    world.clock.advance(60)
    sent = in_sync(world.engine).approve("run", "review", by="ann", comment="fine")
    assert (sent.kind, sent.path, sent.is_awaited) == (WaitKind.APPROVAL, "review", True)
    result = world.resume(release)
    approval = result.output
    assert type(approval) is Approval
    assert (approval.approved, approval.by, approval.comment) == (True, "ann", "fine")
    assert approval.decided_at == START + timedelta(seconds=60)
    [(said, digest)] = approval.digests.items()
    assert "report.html" in said
    assert len(digest) == 64
    assert did == ["build", "published"]
    assert world.resume(release).output == approval
    recorded = next(each for each in world.latest().step_results if each.path == "review")
    assert recorded.evidence["outcome"] == "verified"
    assert recorded.signal == sent.signal_id


def test_bytes_that_changed_before_the_approval_cannot_be_approved_and_are_asked_for_anew(world, report):
    first = world.run(release).waits[0]
    report.write_text("other")
    with pytest.raises(ApprovalStaleError, match="has changed since") as refused:
        in_sync(world.engine).approve("run", "review")
    assert "sha256" in refused.value.reasons[0]
    assert world.pending() == []
    second = world.resume(release).waits[0]
    assert second.request != first.request
    assert second.claims != first.claims
    assert "sha256" in second.voided
    in_sync(world.engine).approve("run", "review", by="ann")
    assert world.resume(release).status == Status.COMPLETED


def test_an_approval_is_void_if_the_bytes_change_before_it_is_used(world, report):
    world.run(release)
    in_sync(world.engine).approve("run", "review", by="ann")
    report.write_text("other")
    result = world.resume(release)
    assert result.status == Status.SUSPENDED
    [voided] = world.told(ApprovalVoided)
    assert (voided.path, voided.by) == ("review", "ann")
    assert "sha256" in voided.details[0]
    assert did == ["build"]
    report.write_text("first")  # as it was when it was approved: the approval is void all the same
    assert world.resume(release).status == Status.SUSPENDED
    in_sync(world.engine).approve("run", "review", by="bob")
    assert world.resume(release).output.by == "bob"


def test_what_was_approved_is_checked_again_by_every_later_resume(world, report):
    world.run(release)
    in_sync(world.engine).approve("run", "review", by="ann")
    world.resume(release)
    report.write_text("other")
    result = world.resume(release)
    assert [wait.path for wait in result.waits] == ["review"]


def test_what_is_to_be_approved_must_be_there(world, report):
    report.unlink()
    result = world.run(release)
    assert result.status == Status.FAILED
    assert result.error.failed_with(EvidenceNotVerifiedError)


@workflow
def slowly_released() -> Generator[Any, Any, Approval]:
    approval = yield from step("review").approval(of=[file_sha256(did_file())])
    for what in PLAN:
        yield step(what[0]).python(what[1], what[0])
    return approval


PLAN: list[tuple[str, Any]] = []


def overwriting(text: str) -> Any:
    def overwrite(what: str) -> None:
        did.append(what)
        did_file().write_text(text)

    return overwrite


def test_bytes_that_change_while_the_run_goes_on_stop_it_before_the_next_step_and_are_asked_for_anew(world, report):
    PLAN[:] = [("slow", overwriting("other")), ("use", do)]
    world.run(slowly_released)
    in_sync(world.engine).approve("run", "review", by="ann")
    result = world.resume(slowly_released)
    assert (result.status, did) == (Status.SUSPENDED, ["slow"])
    [voided] = world.told(ApprovalVoided)
    assert (voided.path, voided.by) == ("review", "ann")
    [wait] = result.waits
    assert "sha256" in wait.voided
    PLAN[:] = [("slow", do), ("use", do)]
    assert world.resume(slowly_released).waits == (wait,)  # a resume finds nothing new
    in_sync(world.engine).approve("run", "review", by="bob")  # what is there now
    assert world.resume(slowly_released, on_code_change="rerun").output.by == "bob"
    assert did == ["slow", "slow", "use"]


def test_an_approval_that_was_void_once_stays_void_when_the_bytes_come_back(world, report):
    PLAN[:] = [("slow", overwriting("other")), ("use", do)]
    world.run(slowly_released)
    in_sync(world.engine).approve("run", "review", by="ann")
    world.resume(slowly_released)
    report.write_text("first")
    PLAN[:] = [("slow", do), ("use", do)]
    assert [each.path for each in world.resume(slowly_released).waits] == ["review"]
    in_sync(world.engine).approve("run", "review", by="bob")
    assert world.resume(slowly_released).output.by == "bob"


def test_what_was_approved_holds_for_a_run_that_was_resumed_behind_it_too(world, report):
    @workflow
    def napping() -> Generator[Any, Any, Any]:
        yield from step("review").approval(of=[file_sha256(did_file())])
        yield step("nap").sleep(7200)
        yield step("slow").python(overwriting("other"), "slow")
        yield step("use").python(do, "use")

    world.run(napping)
    in_sync(world.engine).approve("run", "review", by="ann")
    world.resume(napping)
    world.clock.advance(7200)
    result = world.resume(napping)
    assert (result.status, [each.path for each in result.waits], did) == (Status.SUSPENDED, ["review"], ["slow"])
    assert world.told(ApprovalVoided)[0].by == "ann"


def test_bytes_that_are_gone_while_the_run_goes_on_cannot_be_approved_and_fail_the_step_at_the_resume(world, report):
    def unlink(_: str) -> None:
        report.unlink()

    PLAN[:] = [("slow", unlink), ("use", do)]
    world.run(slowly_released)
    in_sync(world.engine).approve("run", "review", by="ann")
    assert world.resume(slowly_released).status == Status.SUSPENDED
    with pytest.raises(ApprovalStaleError):
        in_sync(world.engine).approve("run", "review", by="bob")
    assert world.resume(slowly_released).error.failed_with(EvidenceNotVerifiedError)


def test_an_untouched_file_is_read_once_more_and_then_only_looked_at(world, report, monkeypatch):
    PLAN[:] = [(f"step{n}", do) for n in range(20)]
    later = EvidenceVerifier(report.parent, allow_absolute=True, clock=FakeClock(START + 100_000 * HOUR))
    engine = WorkflowEngine(world.reopen(), verifier=later)
    engine.run_sync(slowly_released, workflow_id="run")
    in_sync(engine).approve("run", "review", by="ann")
    read: list[str] = []
    digest = file_checks.digest_file

    def counted(path: str, *args: Any, **kwargs: Any) -> Any:
        read.append(path)
        return digest(path, *args, **kwargs)

    monkeypatch.setattr(file_checks, "digest_file", counted)
    touched = report.stat().st_mtime_ns
    os.utime(report, ns=(touched + 1, touched + 1))
    assert engine.resume_sync(slowly_released, workflow_id="run").status == Status.COMPLETED
    assert len(did) == 20
    assert len(read) <= 3


def test_a_claim_that_is_transient_must_hold_when_the_answer_is_taken_and_not_after_that(world, report):
    @workflow
    def signing() -> Generator[Any, Any, Any]:
        yield from step("review").approval(of=[file_sha256(did_file()).transient()])
        yield step("sign").python(overwriting("signed"), "sign")
        yield step("send").python(do, "send")

    world.run(signing)
    in_sync(world.engine).approve("run", "review")
    assert world.resume(signing).status == Status.COMPLETED


def test_who_says_that_stale_results_are_reused_goes_on_with_what_was_approved(world, report):
    PLAN[:] = [("slow", overwriting("other")), ("use", do)]
    world.run(slowly_released)
    in_sync(world.engine).approve("run", "review")
    world.resume(slowly_released)
    assert world.resume(slowly_released, on_stale="reuse").status == Status.COMPLETED
    assert did == ["slow", "use"]


def test_an_approval_in_a_member_or_a_child_binds_what_comes_behind_it_and_nothing_beside_it(world, report):
    @workflow
    def child() -> Generator[Any, Any, Any]:
        yield step("review").approval(of=[file_sha256(did_file())])
        yield step("slow").python(overwriting("other"), "slow")
        return (yield step("use").python(do, "use"))

    @workflow
    def beside() -> Generator[Any, Any, Any]:
        yield step("wait").wait("go")
        return (yield step("free").python(do, "free"))

    @workflow
    def both() -> Generator[Any, Any, Any]:
        yield parallel(step("child").workflow(child), step("beside").workflow(beside))
        yield step("after").python(do, "after")

    world.run(both)
    in_sync(world.engine).approve("run", "parallel/[child]/review")
    in_sync(world.engine).signal("run", "go")
    result = world.resume(both)
    assert (result.status, sorted(did)) == (Status.SUSPENDED, ["free", "slow"])
    assert [each.path for each in result.waits] == ["parallel/[child]/review"]


def test_an_approval_in_a_child_binds_the_steps_behind_the_child(world, report):
    @workflow
    def asking() -> Generator[Any, Any, Any]:
        return (yield step("review").approval(of=[file_sha256(did_file())])).by

    @workflow
    def parent() -> Generator[Any, Any, Any]:
        yield step("child").workflow(asking)
        yield step("slow").python(overwriting("other"), "slow")
        yield step("items").map(do, ["use"])

    world.run(parent)
    in_sync(world.engine).approve("run", "child/review")
    result = world.resume(parent)
    assert (result.status, did) == (Status.SUSPENDED, ["slow"])
    assert [each.path for each in result.waits] == ["child/review"]


def test_a_process_that_may_stay_ends_where_an_approval_is_void_because_only_a_resume_can_go_back(world, report):
    PLAN[:] = [("slow", overwriting("other")), ("use", do)]
    world.run(slowly_released)
    in_sync(world.engine).approve("run", "review")
    assert world.resume(slowly_released, stay=float("inf")).status == Status.SUSPENDED


def test_an_approval_is_what_a_workflow_and_a_child_may_return_unannotated(world):
    @workflow
    def asking():
        return (yield step("review").approval())

    @workflow
    def parent():
        return [(yield step("child").workflow(asking))]

    world.run(parent)
    in_sync(world.engine).approve("run", "child/review", by="ann", comment="fine")
    [approval] = world.resume(parent).output
    assert (type(approval), approval.by, approval.decided_at) == (Approval, "ann", START)
    assert world.resume(parent).output == [approval]


@workflow
def strict_review() -> Generator[Any, Any, Approval]:
    return (yield from step("review").approval("the release"))


@workflow
def lenient_review() -> Generator[Any, Any, Approval]:
    return (yield from step("review").approval(on_rejection="return"))


def test_a_rejection_fails_the_step_and_a_resume_asks_again(world):
    world.run(strict_review)
    in_sync(world.engine).reject("run", "the release", by="ann", comment="too early")
    result = world.resume(strict_review)
    assert (result.status, result.error.failed_with(ApprovalRejectedError)) == (Status.FAILED, True)
    assert "'review' was rejected by ann: too early" in str(result.error)
    assert world.resume(strict_review).status == Status.SUSPENDED
    in_sync(world.engine).approve("run", "review", by="bob")  # by its path
    assert world.resume(strict_review).output.by == "bob"


def test_a_rejection_is_returned_where_the_step_says_so(world):
    world.run(lenient_review)
    in_sync(world.engine).reject("run", "review", by="ann", comment="no")
    found = world.resume(lenient_review).output
    assert (found.approved, found.by, found.comment) == (False, "ann", "no")


def test_an_approval_is_answered_once(world):
    world.run(strict_review)
    in_sync(world.engine).reject("run", "the release", by="ann")
    with pytest.raises(SignalRefusedError, match="already rejected by ann at 2026-01-01 00:00:00 UTC"):
        in_sync(world.engine).approve("run", "the release", by="bob")


def test_of_two_answers_at_the_same_time_one_is_refused(world):
    """Both have seen that there is no answer yet, before either of them sends one."""
    world.run(strict_review)
    slow, quick = world.reopen(), world.engine
    send = slow.send_signal

    async def overtaken(run, signal):
        slow.send_signal = send
        await quick.reject("run", "the release", by="ann")
        return await send(run, signal)

    slow.send_signal = overtaken
    with pytest.raises(SignalRefusedError, match="already rejected by ann"):
        in_sync(WorkflowEngine(slow, clock=world.clock)).approve("run", "the release", by="bob")
    assert [each.by for each in asyncio.run(world.reopen().signals("run"))] == ["ann"]


@pytest.mark.parametrize("answer", ["approve", "reject"])
def test_an_answer_after_the_deadline_is_refused(world, answer):
    @workflow
    def soon() -> Generator[Any, Any, Any]:
        return (yield step("review").approval("the release", timeout=3600))

    world.run(soon)
    world.clock.advance(3600)
    with pytest.raises(SignalRefusedError, match="its deadline was at 2026-01-01 01:00:00 UTC"):
        getattr(in_sync(world.engine), answer)("run", "the release", by="bob")
    assert world.pending() == []


def test_a_signal_after_the_deadline_is_kept_for_a_later_wait_and_says_so(world):
    @workflow
    def twice() -> Generator[Any, Any, Any]:
        first = yield step("first").wait("go", timeout=3600, default="too late")
        return [first, (yield step("second").wait("go"))]

    world.run(twice)
    world.clock.advance(3600)
    assert not in_sync(world.engine).signal("run", "go", "late").is_awaited
    assert world.resume(twice).output == ["too late", "late"]


def test_what_is_not_asked_for_cannot_be_approved(world):
    world.run(naps)
    with pytest.raises(SignalRefusedError, match="is not waiting for this approval"):
        in_sync(world.engine).approve("run", "review")
    in_sync(world.engine).signal("run", "review")  # a signal of the same name is not an answer
    world.clock.advance(7200)
    world.resume(naps)
    with pytest.raises(SignalRefusedError, match="complete"):
        in_sync(world.engine).approve("run", "review")


def test_a_signal_is_no_approval(world):
    world.run(strict_review)
    in_sync(world.engine).signal("run", "the release", {"approved": True})
    assert world.resume(strict_review).status == Status.SUSPENDED


def test_an_approval_of_other_claims_is_asked_for_anew(world, report):
    world.run(release)
    in_sync(world.engine).approve("run", "review", by="ann")

    @workflow("release")
    def edited() -> Generator[Any, Any, Approval]:
        yield step("build").python(do, "build").checkpoint()
        return (yield from step("review").approval(of=[file_sha256(report), artifact_exists(report)]))

    result = world.resume(edited)
    assert result.status == Status.SUSPENDED
    assert len(result.waits[0].claims["evidence"]) == 2
    in_sync(world.engine).approve("run", "review", by="bob")
    assert len(world.resume(edited).output.digests) == 2


def test_an_approval_may_run_out_of_time(world):
    @workflow
    def hurried() -> Generator[Any, Any, Any]:
        return (yield step("review").approval(timeout=3600))

    world.run(hurried)
    world.clock.advance(3600)
    assert world.resume(hurried).error.failed_with(StepTimeoutError)


# --- beside each other -----------------------------------------------------------------------------------------------


@workflow
def one(item: int) -> Generator[Any, Any, list[Any]]:
    begun = yield step("begin").python(do, f"begin {item}")
    answer = yield step("go").wait(f"go-{item}")
    end = yield step("end").python(do, f"end {item}").checkpoint()
    return [begun, answer, end]


@workflow
def mapped() -> Generator[Any, Any, Any]:
    return (yield step("items").map(one, [0, 1, 2]))


def test_a_pretended_time_hardly_passes_while_a_member_is_saved_beside_one_that_waits(world) -> None:
    @workflow
    def beside() -> Generator[Any, Any, Any]:
        return (
            yield parallel(
                step("nap").sleep(3600), step("go").wait("go"), *(step("work").python(do, n) for n in range(40))
            )
        )

    world.run(beside)
    in_sync(world.engine).signal("run", "go", "yes")
    before = world.clock.now()
    world.resume(beside)
    assert (world.clock.now() - before).total_seconds() < 60


def test_members_that_wait_let_the_others_run_to_their_end_first(world):
    @workflow
    def beside() -> Generator[Any, Any, Any]:
        return (
            yield parallel(
                step("nap").sleep(3600), step("go").wait("go"), *(step("work").python(do, n) for n in range(40))
            )
        )

    result = world.run(beside)
    assert {wait.path for wait in result.waits} == {"parallel/[nap]", "parallel/[go]"}
    assert sorted(did) == list(range(40))
    in_sync(world.engine).signal("run", "go", "yes")
    assert [wait.path for wait in world.resume(beside).waits] == ["parallel/[nap]"]
    world.clock.advance(3600)
    result = world.resume(beside)
    assert result.output == (None, "yes", *range(40))
    assert sorted(did) == list(range(40))


def test_a_member_goes_on_as_soon_as_its_own_signal_is_there(world):
    assert len(world.run(mapped).waits) == 3
    in_sync(world.engine).signal("run", "go-1", "b")
    result = world.resume(mapped)
    assert {wait.path for wait in result.waits} == {"items/[0]/go", "items/[2]/go"}
    assert did[3:] == ["end 1"]
    saved = world.sequences()
    assert world.resume(mapped).status == Status.SUSPENDED
    assert world.sequences() == saved
    for item in (0, 2):
        in_sync(world.engine).signal("run", f"go-{item}", item)
    result = world.resume(mapped)
    assert result.output == [["begin 0", 0, "end 0"], ["begin 1", "b", "end 1"], ["begin 2", 2, "end 2"]]
    assert sorted(did) == sorted(f"{word} {item}" for word in ("begin", "end") for item in range(3))


def test_an_approval_in_each_member_is_answered_by_its_path(world):
    @workflow
    def reviewed(item: int) -> Generator[Any, Any, str]:
        approval = yield from step("review").approval()
        return approval.by

    @workflow
    def all_of_them() -> Generator[Any, Any, Any]:
        return (yield step("items").map(reviewed, [0, 1]))

    world.run(all_of_them)
    with pytest.raises(SignalRefusedError, match=r"2 of this name: 'items/\[.\]/review', 'items/\[.\]/review'"):
        in_sync(world.engine).approve("run", "review")
    in_sync(world.engine).approve("run", "items/[1]/review", by="ann")
    in_sync(world.engine).approve("run", "items/[0]/review", by="bob")
    assert world.resume(all_of_them).output == ["bob", "ann"]


def test_a_member_whose_time_has_come_goes_on_while_others_still_run():
    clock = FakeClock(START)
    order: list[str] = []

    async def long() -> None:
        clock.advance(600)
        for _ in range(100_000):
            await asyncio.sleep(0)
            if order:
                break
        order.append("long")

    def late() -> None:
        order.append("late")

    @workflow
    def napper() -> Generator[Any, Any, None]:
        yield step("nap").sleep(600)
        yield step("late").python(late)

    @workflow
    def beside() -> Generator[Any, Any, Any]:
        yield parallel(step("child").workflow(napper), step("long").python(long))

    result = WorkflowEngine(MemoryCheckpointStore(), clock=clock).run_sync(beside)
    assert result.status == Status.COMPLETED
    assert order == ["late", "long"]


def test_a_fan_out_that_is_lost_no_longer_waits(world):
    def breaks() -> None:
        raise ValueError("broken")

    @workflow
    def lost() -> Generator[Any, Any, Any]:
        try:
            yield parallel(step("go").wait("go"), step("bad").python(breaks))
        except StepFailedError:
            return (yield step("nap").sleep(7200))

    result = world.run(lost)
    assert [wait.path for wait in result.waits] == ["nap"]
    assert world.resume(lost).waits == result.waits


def test_failures_that_are_tolerated_stand_beside_what_was_waited_for(world):
    @workflow
    def tolerant() -> Generator[Any, Any, Any]:
        waits = [step("go").wait("go", timeout=3600), step("other").wait("other", timeout=7200)]
        found = yield parallel(*waits, tolerate=1)
        return [type(each).__name__ for each in found]

    world.run(tolerant)
    world.clock.advance(3600)
    assert [wait.name for wait in world.resume(tolerant).waits] == ["other"]
    in_sync(world.engine).signal("run", "other", 1)
    assert world.resume(tolerant).output == ["StepFailedError", "int"]


def test_what_waits_in_a_fan_out_is_durable_at_once_while_others_still_run():
    clock, store = FakeClock(START), MemoryCheckpointStore()
    seen: list[Any] = []

    async def look() -> None:
        while (latest := await store.load_latest("run")) is None or not latest.metadata.get("waits"):
            await asyncio.sleep(0)
        seen.append((latest.status, dict(latest.metadata["waits"])))

    @workflow
    def beside() -> Generator[Any, Any, Any]:
        yield parallel(step("nap").sleep(7200), step("look").python(look))

    assert WorkflowEngine(store, clock=clock).run_sync(beside, workflow_id="run").status == Status.SUSPENDED
    assert seen[0][0] == Status.RUNNING
    assert list(seen[0][1]) == ["parallel/[nap]"]


@workflow
def works_and_waits(item: int) -> Generator[Any, Any, Any]:
    yield step("work").python(do, item).checkpoint()
    return (yield step("go").wait(f"go-{item}", timeout=3600))


@workflow
def very_many(count: int) -> Generator[Any, Any, Any]:
    return (yield step("items").map(works_and_waits, range(count), concurrency=8))


def test_the_bytes_of_many_waits_grow_with_their_number_and_not_faster(tmp_path):
    sizes, ends = {}, {}
    for count in (150, 600):
        store = FileCheckpointStore(tmp_path / str(count))
        engine = WorkflowEngine(store, clock=FakeClock(START))
        assert len(engine.run_sync(very_many, workflow_id="run", count=count).waits) == count

        def size(path: Path = tmp_path / str(count)) -> int:
            return sum(file.stat().st_size for file in path.rglob("*.jsonl"))

        sizes[count] = size()
        for item in range(1, 9):
            in_sync(engine).signal("run", f"go-{item}", "yes")
        result = engine.resume_sync(very_many, workflow_id="run")
        assert len(result.waits) == count - 8
        ends[count] = size() - sizes[count]
        store.close()
    assert sizes[600] < sizes[150] * 6
    assert ends[600] < ends[150] * 6


# --- plans -----------------------------------------------------------------------------------------------------------


def test_a_plan_says_what_the_run_waits_for_since_when(world):
    world.run(orders)
    plan = in_sync(world.engine).plan(orders, workflow_id="run")
    [first] = plan.steps
    assert (first.path, first.decision) == ("first", "new")
    assert first.reasons[0].detail == "it waits for the signal 'order' since 2026-01-01 00:00:00 UTC"
    assert plan.stale == 0


def planned(world: Any, what: Any, path: str) -> list[str]:
    plan = in_sync(world.engine).plan(what, workflow_id="run")
    return [reason.detail for reason in plan.step(path).reasons]


def test_a_plan_says_what_was_sent_for_a_wait(world):
    world.run(orders)
    in_sync(world.engine).signal("run", "order", {"number": 7}, by="ann")
    [said] = planned(world, orders, "first")
    assert said.endswith("; it was sent by ann at 2026-01-01 00:00:00 UTC: the resume takes it")


def test_a_plan_gives_each_message_to_one_wait(world):
    @workflow
    def both() -> Generator[Any, Any, Any]:
        yield parallel(step("a").wait("go"), step("b").wait("go"))

    world.run(both)
    in_sync(world.engine).signal("run", "go")
    said = [planned(world, both, f"parallel/[{name}]")[0] for name in "ab"]
    assert ["takes it" in each for each in said] == [True, False]


def test_a_plan_says_how_an_approval_was_answered_and_whether_it_is_asked_anew(world, report):
    world.run(release)
    in_sync(world.engine).approve("run", "review", by="ann")
    [said] = planned(world, release, "review")
    assert said.endswith("; it was approved by ann at 2026-01-01 00:00:00 UTC: the resume takes it")
    report.write_text("other")
    [said] = planned(world, release, "review")
    assert "what is to be approved has changed since" in said
    assert said.endswith("the resume asks again")


def test_a_plan_says_that_a_question_is_void_although_nobody_has_answered(world, report):
    world.run(release)
    report.write_text("other")
    assert planned(world, release, "review")[0].endswith("the resume asks again")


def test_a_plan_says_of_an_approval_that_was_void_while_the_run_went_on_that_it_is_asked_and_answered(world, report):
    PLAN[:] = [("slow", overwriting("other")), ("use", do)]
    world.run(slowly_released)
    in_sync(world.engine).approve("run", "review")
    world.resume(slowly_released)
    void, said = planned(world, slowly_released, "review")
    assert void.startswith("it is void: ")
    assert said.startswith("it waits for the approval 'review' since")
    in_sync(world.engine).approve("run", "review", by="bob")
    assert planned(world, slowly_released, "review")[1].endswith("the resume takes it")


def test_a_plan_assumes_nothing_of_members_that_have_never_returned(world):
    @workflow
    def group() -> Generator[Any, Any, Any]:
        yield parallel(step("w1").wait("one"), step("w2").wait("two"), step("nested").workflow(nested))

    @workflow
    def nested() -> Generator[Any, Any, Any]:
        yield step("w3").wait("three")

    world.run(group)
    plan = in_sync(world.engine).plan(group, workflow_id="run")
    assert plan.step("parallel/[nested]/w3").reasons
    assert [plan.step(path).assumes for path in ("parallel", "parallel/[nested]")] == [(), ()]


def test_a_plan_finds_what_waits_in_members(world):
    world.run(mapped)
    plan = in_sync(world.engine).plan(mapped, workflow_id="run")
    assert {each.path for each in plan.steps if each.reasons} == {f"items/[{n}]/go" for n in range(3)}


@pytest.mark.parametrize("is_resumed", [False, True])
def test_waits_are_recorded_and_shown_in_the_order_of_the_program(world, is_resumed):
    """The first member comes to its wait after the wait of the second is saved; a resume finds them in that order."""

    async def slowly() -> None:
        while len(world.told(CheckpointSaved)) < 2:
            await asyncio.sleep(0)

    @workflow
    def late() -> Generator[Any, Any, Any]:
        yield step("slow").python(slowly)
        yield step("first").wait("first")

    @workflow
    def group() -> Generator[Any, Any, Any]:
        yield parallel(step("z").workflow(late), step("a").wait("second", timeout=HOUR), step("b").wait("third"))

    result = world.run(group)
    if is_resumed:
        result = world.resume(group)
    expected = ["first", "second", "third"]
    assert [wait.name for wait in result.waits] == expected
    assert [wait.name for wait in world.told(WorkflowSuspended)[0].waits] == expected
    assert [wait.name for wait in world.info().waits] == expected
    with pytest.raises(RunSuspendedError, match=r"(?s)first.*second.*third"):
        result.unwrap()


# --- what makes no sense ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda s: s.sleep(), "takes a time to wait"),
        (lambda s: s.sleep(1, until=START), "takes a time to wait"),
        (lambda s: s.sleep(-1), "from 0 to"),
        (lambda s: s.sleep(float("nan")), "from 0 to"),
        (lambda s: s.sleep(float("inf")), "from 0 to"),
        (lambda s: s.sleep(10**400), "from 0 to"),
        (lambda s: s.sleep(True), "from 0 to"),
        (lambda s: s.sleep("5"), "from 0 to"),
        (lambda s: s.sleep(timedelta(days=99_999)), "from 0 to"),
        (lambda s: s.sleep(datetime(2026, 1, 1)), "not an aware datetime"),  # noqa: DTZ001
        (lambda s: s.sleep(until="tomorrow"), "not an aware datetime"),
        (lambda s: s.wait(""), "blank"),
        (lambda s: s.wait(5), "must be text"),
        (lambda s: s.wait("go", default=1), "never returned"),
        (lambda s: s.wait("go", timeout=-1), "from 0 to"),
        (lambda s: s.approval(" "), "blank"),
        (lambda s: s.approval(of="report.html"), "list of claims"),
        (lambda s: s.approval(of=["report.html"]), "list of claims"),
        (lambda s: s.approval(of=[]), "contains no claims"),
        (lambda s: s.approval(of=()), "contains no claims"),
        (lambda s: s.approval(of=EvidencePack([])), "contains no claims"),
        (lambda s: s.wait("go", type="nosuchtype"), "'nosuchtype' is not a type"),
        (lambda s: s.wait("go", type=list["nosuchtype"]), "'nosuchtype' is not a type"),  # type: ignore[name-defined]  # noqa: F821
        (lambda s: s.wait("go", type=5), "5 is not a type"),
        (lambda s: s.approval(on_rejection="shrug"), "neither 'fail' nor 'return'"),
        (lambda s: s.sleep(1).wait("go"), "has an action already"),
        (lambda s: s.python(do, 1).approval(), "has an action already"),
        (lambda s: s.wait("go").sleep(1), "has an action already"),
    ],
)
def test_what_cannot_be_waited_for_is_refused_where_it_is_written(make, said):
    with pytest.raises(StepDefinitionError, match=said):
        make(step("nap"))


@pytest.mark.parametrize(
    "modifier",
    [
        lambda s: s.ephemeral(),
        lambda s: s.retry(2),
        lambda s: s.timeout(5),
        lambda s: s.at_most_once(),
        lambda s: s.on_rerun(do),
        lambda s: s.rollback(do),
        lambda s: s.secret(),
        lambda s: s.evidence(artifact_exists("x")),
    ],
)
@pytest.mark.parametrize("is_first", [True, False])
def test_a_modifier_that_makes_no_sense_with_a_wait_is_refused(modifier, is_first):
    @workflow
    def wrong() -> Generator[Any, Any, None]:
        yield modifier(step("nap")).sleep(1) if is_first else modifier(step("nap").sleep(1))

    result = WorkflowEngine(MemoryCheckpointStore()).run_sync(wrong)
    assert isinstance(result.error, StepDefinitionError)
    assert "cannot be used with .sleep()" in str(result.error)


@pytest.mark.parametrize("stay", [-1, "5", True, float("nan"), 10**400])
def test_a_number_of_seconds_to_stay_that_cannot_be_is_refused(stay):
    with pytest.raises(InputError, match="stay="):
        RunOptions(stay=stay)


@attrs.frozen
class Parcel:
    n: int


@dataclasses.dataclass
class Line:
    n: int


class Pair(NamedTuple):
    n: int


@pytest.mark.parametrize("is_early", [True, False])
@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Parcel, Parcel(7)),
        (Line, Line(7)),
        (Pair, Pair(7)),
        (Pair | None, Pair(7)),
        (list[Parcel], [Parcel(7)]),
        (dict[str, Line], {"a": Line(7)}),
        (list[Pair], [Pair(7)]),
        (tuple[Pair, Parcel], (Pair(1), Parcel(2))),
    ],
)
def test_a_typed_wait_takes_the_values_that_its_type_names(kind: Any, value: Any, is_early: bool) -> None:
    @workflow("typed")
    def typed() -> Generator[Any, Any, Any]:
        if is_early:
            yield step("first").wait("first")
        return (yield step("order").wait("order", type=kind))

    engine = WorkflowEngine(MemoryCheckpointStore())
    engine.run_sync(typed, workflow_id="one")
    in_sync(engine).signal("one", "order", value)
    if is_early:
        in_sync(engine).signal("one", "first")
    assert engine.resume_sync(typed, workflow_id="one").unwrap() == value
    assert engine.resume_sync(typed, workflow_id="one").unwrap() == value
