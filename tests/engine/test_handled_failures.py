"""A failure that the workflow handled is history: a resume replays it, with what followed it, and moves no money."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flowckpt import MemoryCheckpointStore, WorkflowEngine, in_sync, step, workflow
from flowckpt.core.records import Status
from flowckpt.engine import RunOptions
from flowckpt.engine.rules.plan import Decision
from flowckpt.errors import StaleStepError, StepFailedError, StepInDoubtError
from flowckpt.evidence import file_sha256

ledger: list[str] = []
broken: set[str] = set()
failed: list[str] = []
"""The steps that failed since the workflow yielded one."""


@pytest.fixture(autouse=True)
def _new_world() -> None:
    ledger.clear()
    broken.clear()
    failed.clear()


def act(name: str) -> str:
    if name in broken:
        ledger.append(f"{name} failed")
        failed.append(name)
        raise OSError(f"{name} is broken")
    ledger.append(name)
    return name


def made(name: str) -> Any:
    return step(name).python(act, name).checkpoint()


@workflow("transfer")
def transfer() -> Generator[Any, Any, str]:
    yield made("withdraw")
    try:
        yield made("deposit")
    except StepFailedError:
        yield made("refund")
        raise
    return "transferred"


@workflow("transfer")
def mended() -> Generator[Any, Any, str]:
    yield made("withdraw")
    try:
        yield made("deposit")
    except StepFailedError:
        yield made("refund")
        return "refunded"
    return "transferred"


@workflow("parent")
def parent() -> Generator[Any, Any, Any]:
    return (yield step("inner").workflow(transfer))


@workflow("cleaning")
def cleaning() -> Generator[Any, Any, Any]:
    yield made("withdraw")
    try:
        yield made("deposit")
    finally:
        yield made("refund")


@workflow("members")
def members() -> Generator[Any, Any, Any]:
    try:
        yield step("all").map(act, ["x", "deposit"], key=str)
    except StepFailedError:
        yield made("refund")
        raise


def engine_after(flow: Any) -> WorkflowEngine:
    engine = WorkflowEngine(MemoryCheckpointStore())
    broken.add("deposit")
    assert engine.run_sync(flow, workflow_id="run").status is Status.FAILED
    return engine


@pytest.mark.parametrize("flow", [transfer, parent, cleaning, members], ids=lambda flow: flow.name)
def test_what_was_refunded_is_not_deposited_by_a_resume(flow):
    engine = engine_after(flow)
    before = [*ledger]
    broken.clear()
    plan = in_sync(engine).plan(flow, workflow_id="run")
    assert {each.decision for each in plan.steps} == {Decision.REUSE}
    assert plan.handled is not None
    result = engine.resume_sync(flow, workflow_id="run")
    assert ledger == before
    assert (result.status, result.attempt) == (Status.FAILED, 1)
    assert result.handled == plan.handled
    assert "deposit" in result.handled.path
    assert result.handled.followed_by[0].endswith("refund")


def test_the_step_is_tried_again_where_somebody_says_so():
    engine = engine_after(transfer)
    broken.clear()
    result = engine.resume_sync(transfer, workflow_id="run", options=RunOptions(from_step="deposit"))
    assert result.output == "transferred"
    assert ledger == ["withdraw", "deposit failed", "refund", "deposit"]


def test_mended_code_goes_another_way_from_the_same_history():
    engine = engine_after(transfer)
    broken.clear()
    result = engine.resume_sync(mended, workflow_id="run")
    assert result.output == "refunded"
    assert ledger == ["withdraw", "deposit failed", "refund"]


def test_a_handler_that_fails_is_tried_again_and_the_failure_before_it_is_not():
    engine = WorkflowEngine(MemoryCheckpointStore())
    broken.update(["deposit", "refund"])
    assert engine.run_sync(transfer, workflow_id="run").handled is None
    broken.clear()
    result = engine.resume_sync(transfer, workflow_id="run")
    assert (result.status, result.handled.path) == (Status.FAILED, "deposit")
    assert ledger == ["withdraw", "deposit failed", "refund failed", "refund"]


def test_a_failure_that_ended_the_run_directly_is_tried_again():
    @workflow
    def direct() -> Generator[Any, Any, str]:
        yield made("withdraw")
        yield made("deposit")
        return "transferred"

    engine = engine_after(direct)
    broken.clear()
    assert engine.resume_sync(direct, workflow_id="run").output == "transferred"


# Random programs, against a clean run in which what had failed and was handled fails again, and nothing else does.


@attrs.define
class Program:
    """A tree of blocks, and which failures the workflow handled while it ran: those after which it yielded again."""

    blocks: list[Any]
    handled: set[str] = attrs.field(factory=set)

    def yields(self, made_of: Any) -> Generator[Any, Any, Any]:
        self.handled.update(failed)
        failed.clear()
        return (yield made_of)

    def body(self, blocks: list[Any], at: str) -> Generator[Any, Any, Any]:
        for number, block in enumerate(blocks):
            here = f"{at}-{number}"
            kind = block[0]
            if kind == "step":
                yield from self.yields(made(here))
            elif kind == "retried":
                yield from self.yields(made(here).retry(2))
            elif kind == "map":
                yield from self.yields(step(here).map(act, [f"{here}-x", f"{here}-y"], key=str, concurrency=1))
            elif kind == "child":
                yield from self.yields(step(here).workflow(self.flow(block[1], here)))
            elif kind == "try":
                try:
                    yield from self.body(block[1], f"{here}t")
                except StepFailedError:
                    yield from self.body(block[2], f"{here}e")
                    if block[3]:
                        raise
            else:
                try:
                    yield from self.body(block[1], f"{here}t")
                finally:
                    yield from self.body(block[2], f"{here}f")

    def flow(self, blocks: list[Any], at: str) -> Any:
        def generator() -> Generator[Any, Any, Any]:
            yield from self.body(blocks, at)
            return at

        return workflow("program")(generator)


leaves = st.sampled_from([("step",), ("step",), ("retried",), ("map",)])
blocks = st.recursive(
    st.lists(leaves, max_size=3),
    lambda inner: st.lists(
        st.one_of(
            leaves,
            st.tuples(st.just("child"), inner),
            st.tuples(st.just("try"), inner, inner, st.booleans()),
            st.tuples(st.just("finally"), inner, inner),
        ),
        max_size=3,
    ),
    max_leaves=6,
)


def names_in(program: Program) -> list[str]:
    """What the program does where everything works, and in its handlers."""
    found: list[str] = []

    def look(some: list[Any], at: str) -> None:
        for number, block in enumerate(some):
            here = f"{at}-{number}"
            if block[0] in ("step", "retried"):
                found.append(here)
            elif block[0] == "map":
                found.extend([f"{here}-x", f"{here}-y"])
            elif block[0] == "child":
                look(block[1], here)
            else:
                look(block[1], f"{here}t")
                look(block[2], f"{here}{'e' if block[0] == 'try' else 'f'}")

    look(program.blocks, "s")
    return found


def done() -> list[str]:
    return sorted(each for each in ledger if not each.endswith(" failed"))


@given(st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_resume_ends_as_a_clean_run_in_which_the_handled_failures_happen_again(data):
    ledger.clear()
    broken.clear()
    failed.clear()
    program = Program(data.draw(blocks))
    names = names_in(program)
    if not names:
        return
    broken.update(data.draw(st.sets(st.sampled_from(names), min_size=1, max_size=3)))
    engine = WorkflowEngine(MemoryCheckpointStore())
    first = engine.run_sync(program.flow(program.blocks, "s"), workflow_id="run")
    if first.status is Status.COMPLETED:
        return
    handled = set(program.handled)
    ending = {each for each in names if f"{each} is broken" in str(first.error)}
    is_final = ending <= handled  # and what failed since was swallowed: it did not end the run either
    handled |= set(failed) if is_final else set()
    assert (first.handled is not None) == is_final
    before = [*ledger]
    broken.clear()
    plan = in_sync(engine).plan(program.flow(program.blocks, "s"), workflow_id="run")
    assert (plan.handled is not None) == is_final
    resumed = engine.resume_sync(program.flow(program.blocks, "s"), workflow_id="run")
    if is_final:
        assert ledger == before
    effects = done()
    ledger.clear()
    broken.update(handled)
    clean = WorkflowEngine(MemoryCheckpointStore()).run_sync(program.flow(program.blocks, "s"))
    assert (resumed.status, resumed.output, effects) == (clean.status, clean.output, done())


# --- something that came before has changed -----------------------------------------------------------------------------


def pay(amount: int, name: str) -> int:
    act(name)
    return amount


def paying(*, fee: int = 1, amount: int = 1, mail: int = 1) -> Any:
    @workflow("paying")
    def flow() -> Generator[Any, Any, str]:
        yield step("fee").python(pay, fee, "fee").checkpoint()
        try:
            yield step("deposit").python(pay, amount, "deposit").checkpoint()
        except StepFailedError:
            yield made("refund")
        yield step("mail").python(pay, mail, "mail").checkpoint()
        return "paid"

    return flow


def refunded() -> WorkflowEngine:
    engine = WorkflowEngine(MemoryCheckpointStore())
    broken.add("deposit")
    assert engine.run_sync(paying(), workflow_id="run").status is Status.COMPLETED
    broken.clear()
    return engine


@pytest.mark.parametrize(
    ("changed", "options"),
    [
        ({"fee": 2}, {}),
        ({"amount": 2}, {}),
        ({"amount": 2}, {"reuse": "inputs"}),
        ({"fee": 2, "amount": 2, "mail": 2}, {}),
    ],
)
def test_no_default_tries_a_handled_failure_again_because_something_changed(changed, options):
    engine, before = refunded(), [*ledger]
    plan = in_sync(engine).plan(paying(**changed), workflow_id="run", options=RunOptions(**options))
    assert "a rerun would try deposit again, whose failure the workflow handled" in plan.stops
    with pytest.raises(StaleStepError, match="deposit again") as caught:
        engine.resume_sync(paying(**changed), workflow_id="run", options=RunOptions(**options))
    assert ledger == before
    assert "--on-stale rerun" in caught.value.remedy and "--on-stale reuse" in caught.value.remedy


@pytest.mark.parametrize("options", [{"on_stale": "rerun"}, {"from_step": "fee"}, {"force": True}], ids=str)
def test_a_person_may_try_it_again(options):
    engine = refunded()
    assert not in_sync(engine).plan(paying(fee=2), workflow_id="run", options=RunOptions(**options)).stops
    assert (
        engine.resume_sync(paying(fee=2), workflow_id="run", options=RunOptions(**options)).status is Status.COMPLETED
    )
    assert ledger[-3:] == ["fee", "deposit", "mail"]


def test_what_does_not_touch_the_handled_failure_runs_again_by_default():
    engine, before = refunded(), [*ledger]
    engine.resume_sync(paying(mail=2), workflow_id="run")
    assert ledger == [*before, "mail"]
    engine.resume_sync(paying(fee=2, mail=2), workflow_id="run", options=RunOptions(reuse="inputs"))
    assert ledger == [*before, "mail", "fee"]
    engine.resume_sync(paying(fee=3, mail=3), workflow_id="run", options=RunOptions(on_stale="reuse"))
    assert ledger == [*before, "mail", "fee"]


def test_a_tolerated_member_was_not_handled():
    def tolerant(fee: int) -> Any:
        @workflow("tolerant")
        def flow() -> Generator[Any, Any, None]:
            yield step("fee").python(pay, fee, "fee").checkpoint()
            yield step("all").map(act, ["x", "deposit"], tolerate=1).checkpoint()
            yield made("mail")

        return flow

    engine = WorkflowEngine(MemoryCheckpointStore())
    broken.add("deposit")
    assert engine.run_sync(tolerant(1), workflow_id="run").status is Status.COMPLETED
    assert engine.resume_sync(tolerant(2), workflow_id="run").status is Status.COMPLETED


@workflow("careful")
def careful() -> Generator[Any, Any, str]:
    amount = yield made("withdraw").evidence(file_sha256("amount"))
    try:
        yield step("deposit").python(act, "deposit").at_most_once()
    except StepFailedError:
        yield step("refund").python(act, "refund").at_most_once()
    return amount


def test_the_plan_names_the_failed_step_that_stops_the_resume(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "amount").write_text("5")
    engine = WorkflowEngine(MemoryCheckpointStore())
    broken.add("deposit")
    engine.run_sync(careful, workflow_id="run")
    (tmp_path / "amount").write_text("6")
    options = RunOptions(on_stale="rerun")
    plan = in_sync(engine).plan(careful, workflow_id="run", options=options)
    decided = {each.path: each.decision for each in plan.steps}
    assert (plan.stopped_by, decided["deposit"]) == ("deposit", Decision.IN_DOUBT)
    with pytest.raises(StepInDoubtError) as stopped:
        engine.resume_sync(careful, workflow_id="run", options=options).unwrap()
    assert stopped.value.path == plan.stopped_by
