"""`patched()`: a branch that new runs take and old ones do not; `plan --all` says which runs would refuse the new code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flowckpt import (
    MemoryCheckpointStore,
    WorkflowEngine,
    check_determinism,
    in_sync,
    parallel,
    patched,
    step,
    workflow,
)
from flowckpt.errors import StepDefinitionError

OLD = """
from pathlib import Path
from flowckpt import patched, step, workflow

def note(line):
    with open("log", "a") as file:
        file.write(line + "\\n")

def price():
    note("price")
    return 100

def tax(amount):
    note("tax")
    return amount // 10

def new_tax(amount):
    note("new tax")
    return amount // 5

def send(amount, to="a"):
    note(f"send {amount}")
    if not Path("ready").exists():
        raise OSError("not ready")
    return amount

@workflow
def bill():
    amount = yield step("price").python(price).checkpoint()
    tax_ = yield step("tax").python(tax, amount).checkpoint()
    return (yield step("send").python(send, amount + tax_))
"""
NEW = OLD.replace(
    """    tax_ = yield step("tax").python(tax, amount).checkpoint()
""",
    """    if (yield patched("tax-2027")):
        tax_ = yield step("new tax").python(new_tax, amount).checkpoint()
    else:
        tax_ = yield step("tax").python(tax, amount).checkpoint()
""",
)
UNPATCHED = OLD.replace('step("tax").python(tax, amount)', 'step("new tax").python(new_tax, amount)')


@pytest.fixture
def program(flowckpt: Any, tmp_path: Path) -> Any:
    (tmp_path / "bill.py").write_text(OLD)
    return flowckpt


def test_an_old_run_keeps_its_branch_and_a_new_one_takes_the_new(program: Any, tmp_path: Path) -> None:
    program("run", "bill.py", "--id", "old").expect(1)
    (tmp_path / "bill.py").write_text(UNPATCHED)
    program("resume", "old").expect(14)
    (tmp_path / "bill.py").write_text(NEW)
    program("plan", "old").expect(0)
    program("run", "bill.py", "--id", "new").expect(1)
    assert program.log() == ["price", "tax", "send 110", "price", "new tax", "send 120"]
    (tmp_path / "ready").touch()
    assert "output: 110" in program("resume", "old").expect(0).out
    assert "output: 120" in program("resume", "new").expect(0).out
    assert program.log()[6:] == ["send 110", "send 120"]
    steps = program("show", "new", "--json").document["steps"]
    assert [(each["path"], each["output"]) for each in steps][1] == ("tax-2027", True)
    assert "tax-2027" not in [each["path"] for each in program("show", "old", "--json").document["steps"]]
    for run in ("old", "new"):
        assert "nothing to run" in program("plan", run).expect(0).out


def test_a_run_that_has_not_come_there_takes_the_new_branch(program: Any, tmp_path: Path) -> None:
    (tmp_path / "bill.py").write_text(OLD.replace('    note("tax")', "    raise OSError"))
    program("run", "bill.py", "--id", "one").expect(1)
    (tmp_path / "bill.py").write_text(NEW)
    plan = program("plan", "one").expect(0).out
    assert "new       tax-2027" in plan and "new       new tax" in plan
    (tmp_path / "ready").touch()
    assert "output: 120" in program("resume", "one").expect(0).out


def test_all_unfinished_runs_are_planned_before_a_deployment(program: Any, tmp_path: Path) -> None:
    program("run", "bill.py", "--id", "old").expect(1)
    (tmp_path / "ready").touch()
    program("run", "bill.py", "--id", "finished").expect(0)
    (tmp_path / "ready").unlink()
    shown = program("plan", "--all").expect(0).out
    assert "old" in shown and "resumes" in shown and "finished" not in shown
    (tmp_path / "bill.py").write_text(UNPATCHED)
    program("run", "bill.py", "--id", "younger").expect(1)
    shown = program("plan", "--all").expect(14).out
    assert "stops (14)" in shown
    document = program("plan", "--all", "--json").expect(14).document
    assert {each["workflow_id"]: each["stops"] for each in document} == {"old": True, "younger": False}
    (refused,) = [each for each in document if each["stops"]]
    assert refused["exit_code"] == 14 and "yields the step 'new tax'" in refused["why"]
    assert refused["plan"]["workflow_id"] == "old" and refused["status"] == "failed"
    (tmp_path / "bill.py").write_text(NEW.replace('step("new tax")', 'step("tax")'))
    document = program("plan", "--all", "--json").document
    assert {each["workflow_id"]: each["stops"] for each in document} == {"old": False, "younger": True}


def test_new_code_beside_the_old_is_planned_by_its_target(program: Any, tmp_path: Path) -> None:
    program("run", "bill.py", "--id", "old").expect(1)
    program("run", "pipeline.py:naps", "-i", "count=1", "--id", "naps").expect(0)
    (tmp_path / "next").mkdir()
    (tmp_path / "next" / "bill.py").write_text(UNPATCHED)
    document = program("plan", "--all", "--target", "next/bill.py", "--json").expect(14).document
    assert [each["workflow_id"] for each in document] == ["old"]
    program("plan", "--all").expect(0)


def test_a_program_that_is_gone_does_not_hide_the_other_runs(program: Any, tmp_path: Path) -> None:
    program("run", "bill.py", "--id", "old").expect(1)
    (tmp_path / "other.py").write_text(OLD)
    program("run", "other.py", "--id", "other").expect(1)
    (tmp_path / "other.py").write_text("def broken(:")
    document = json.loads(program("plan", "--all", "--json").expect(2).out)
    assert {each["workflow_id"]: each["stops"] for each in document} == {"old": False, "other": True}


@pytest.mark.parametrize("words", [("--all", "old"), (), ("--all", "-i", "a=1")])
def test_one_run_or_all(program: Any, words: tuple[str, ...]) -> None:
    program("plan", *words).expect(2)


# --- in the language ---------------------------------------------------------------------------------------------------


def test_a_patch_has_one_answer_in_a_run() -> None:
    seen: list[bool] = []

    @workflow
    def loop() -> Any:
        for index in range(3):
            seen.append((yield patched("p")))
            yield step("work").python(abs, -index).checkpoint()
        return None

    store = MemoryCheckpointStore()
    WorkflowEngine(store).run_sync(loop, workflow_id="run")
    assert seen == [True] * 3
    assert [each.path for each in in_sync(WorkflowEngine(store)).plan(loop, workflow_id="run").steps] == [
        "p", "work", "work[1]", "work[2]"
    ]  # fmt: skip
    assert check_determinism(loop).is_deterministic


def test_an_old_run_in_the_middle_of_a_loop_does_not_change_its_mind() -> None:
    seen: list[bool] = []
    fails = [True]

    def work(index: int) -> int:
        if index == 1 and fails:
            raise OSError(fails.pop())
        return index

    def loop_of(has_patch: bool) -> Any:
        @workflow(name="loop")
        def loop() -> Any:
            for index in range(3):
                if has_patch:
                    seen.append((yield patched("p")))
                yield step("work").python(work, index).checkpoint()

        return loop

    engine = WorkflowEngine(MemoryCheckpointStore())
    assert engine.run_sync(loop_of(False), workflow_id="run").status == "failed"
    assert engine.resume_sync(loop_of(True), workflow_id="run").status == "completed"
    assert set(seen) == {False}


def test_a_patch_stands_by_itself() -> None:
    with pytest.raises(StepDefinitionError, match="cannot be a member"):
        parallel(patched("p"), step("a").python(abs, -1))


WAITS = """
from flowckpt import parallel, patched, step, workflow

@workflow
def order():
    yield step("begin").python(str, 1).checkpoint()
    # BEFORE
    yield {wait}
    # AFTER
    return "done"
"""
BRANCH = """if (yield patched("{name}")):
        yield step("new_{name}").python(str, 2).checkpoint()"""


@pytest.mark.parametrize(
    "wait", ['step("paid").wait("paid")', 'parallel(step("paid").wait("paid"), step("x").python(int), name="both")']
)
def test_a_run_that_waits_after_a_branch_came_by_before_it_was_written(flowckpt, tmp_path, wait):
    program = tmp_path / "order.py"
    program.write_text(WAITS.format(wait=wait))
    flowckpt("run", "order.py", "--id", "old", "--stay", "0").expect(3)
    edited = WAITS.format(wait=wait)
    for place in ("BEFORE", "AFTER"):
        edited = edited.replace(f"# {place}", BRANCH.format(name=place.lower()))
    program.write_text(edited)
    planned = flowckpt("plan", "old").out
    assert "new_before" not in planned
    flowckpt("signal", "old", "paid").expect(0)
    flowckpt("resume", "old").expect(0)
    steps = flowckpt("show", "old", "--steps").out
    assert "new_before" not in steps and "new_after" in steps
    flowckpt("run", "order.py", "--id", "new", "--stay", "0").expect(3)
    assert "new_before" in flowckpt("show", "new", "--steps").out
