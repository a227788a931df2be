"""A finished run is a program like any other, and a handled failure is history: what a person reads and types."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

PROGRAM = """
from pathlib import Path
from flowckpt import step, workflow
from flowckpt.errors import StepFailedError

def note(line):
    with open("log", "a") as file:
        file.write(line + "\\n")

def withdraw(amount):
    note("withdraw")
    return amount

def give_back(amount):
    note("give back")

def deposit(amount):
    note("deposit")
    if not Path("open").exists():
        raise OSError("the bank is closed")
    return amount

def refund(amount):
    note("refund")

@workflow
def transfer():
    amount = yield step("withdraw").python(withdraw, 5).checkpoint()
    try:
        yield step("deposit").python(deposit, amount).checkpoint()
    except StepFailedError:
        yield step("refund").python(refund, amount).checkpoint()
        raise
    return amount
"""
WAYS = [
    "The workflow handled the failure of deposit: it ran refund after it. A resume keeps that and runs nothing.",
    "Run it again, starting at deposit: flowckpt resume --from deposit one",
    "  That does not undo refund.",
    "Or start a new run.",
]


@pytest.fixture
def bank(flowckpt: Any, tmp_path: Path) -> Any:
    (tmp_path / "bank.py").write_text(PROGRAM)
    return flowckpt


def edit(bank: Any, old: str, new: str) -> None:
    assert PROGRAM.count(old) == 1, old
    (bank.directory / "bank.py").write_text(PROGRAM.replace(old, new))


def failed(bank: Any) -> None:
    bank("run", "bank.py", "--id", "one").expect(1)
    (bank.directory / "open").touch()


REMOVED = '        yield step("deposit").python(deposit, amount).checkpoint()\n'


@pytest.mark.parametrize(
    "new", ["        pass\n", REMOVED.replace('"deposit"', '"pay in"')], ids=["removed", "renamed"]
)
def test_a_recorded_step_that_is_missing_in_a_finished_run(bank: Any, new: str) -> None:
    (bank.directory / "open").touch()
    bank("run", "bank.py", "--id", "one").expect(0)
    edit(bank, REMOVED, new)
    plan = bank("plan", "one").expect(14).out
    assert "The resume would stop: " in plan and "recorded step 'deposit'" in plan and "nothing to run" not in plan
    assert "orphaned  deposit" in plan
    ran = bank("resume", "one").expect(14)
    assert "recorded step 'deposit' (python bank:deposit) at bank.py:" in ran.err
    assert bank("resume", "one", "--json").expect(14).document["error"]["type"].endswith("WorkflowChangedError")
    assert bank.log() == ["withdraw", "deposit"]
    assert bank("show", "one", "--json").document["attempt"] == 1


def test_the_plan_and_the_resume_explain_a_handled_failure_and_name_the_ways_forward(bank: Any) -> None:
    failed(bank)
    before = bank.log()
    plan = bank("plan", "one").expect(0)
    assert plan.out.splitlines()[-4:] == WAYS
    ran = bank("resume", "one").expect(1)
    assert ran.err.splitlines()[-4:] == WAYS
    assert bank.log() == before == ["withdraw", "deposit", "refund"]
    handled = bank("plan", "one", "--json").expect(0).document["handled"]
    assert handled == {"path": "deposit", "followed_by": ["refund"]}
    assert bank("show", "one", "--json").document["attempt"] == 1
    bank("resume", "one", "--from", "deposit").expect(0)
    assert bank.log()[3:] == ["deposit"]


def test_a_step_that_was_undone_runs_again_even_after_a_handled_failure(bank: Any) -> None:
    edit(bank, "python(withdraw, 5).checkpoint()", "python(withdraw, 5).rollback(give_back).checkpoint()")
    failed(bank)
    assert bank.log() == ["withdraw", "deposit", "refund", "give back"]
    plan = bank("plan", "one").expect(0).out
    assert "undone: it was undone when the run failed" in plan and "handled" not in plan
    bank("resume", "one").expect(0)
    assert bank.log()[4:] == ["withdraw", "deposit"]


ELSEWHERE = """
import os
from pathlib import Path
from flowckpt import parallel, step, workflow
from flowckpt.errors import StepFailedError
from flowckpt.evidence import file_sha256

def note(line):
    with open("log", "a") as file:
        file.write(line + "\\n")

def configure():
    Path("config").write_text("1")

def deposit(amount):
    note("deposit")
    if not Path("open").exists():
        raise OSError("the bank is closed")
    note("deposited")

def refund():
    note("refund")
    if Path("kill").exists():
        os.kill(os.getpid(), 9)

def report():
    if not Path("printer").exists():
        raise OSError("no printer")

@workflow
def depositing():
    try:
        yield step("deposit").python(deposit, 5)
    except StepFailedError:
        return False
    return True

def paying(kind):
    if kind == "map":
        (out,) = yield step("all").map(deposit, [5], tolerate=1)
        return not isinstance(out, StepFailedError)
    if kind == "race":
        out = yield parallel(
            step("deposit").python(deposit, 5), step("other").python(abs, 1), min_success=1, concurrency=1
        )
        return not isinstance(out[0], StepFailedError)
    if kind == "child in a group":
        return (yield parallel(step("child").workflow(depositing)))[0]
    return (yield step("child").workflow(depositing))

@workflow
def elsewhere(kind: str):
    yield step("config").python(configure).evidence(file_sha256("config")).checkpoint()
    if not (yield from paying(kind)):
        yield step("refund").python(refund).checkpoint()
    yield step("report").python(report)
"""


@pytest.mark.parametrize("kind", ["map", "race", "child", "child in a group"])
def test_a_failure_that_another_generator_handles_is_durable_before_the_handler(flowckpt, tmp_path, kind):
    (tmp_path / "bank.py").write_text(ELSEWHERE)
    for name in ("kill", "printer"):
        (tmp_path / name).touch()
    flowckpt("run", "bank.py:elsewhere", "--id", "one", "-i", f"kind={kind}").expect(-9)
    for name in ("kill",):
        (tmp_path / name).unlink()
    (tmp_path / "open").touch()  # now it would succeed
    flowckpt("resume", "one").expect(0)
    assert flowckpt.log() == ["deposit", "refund", "refund"]  # never refunded and deposited


@pytest.mark.parametrize("kind", ["child", "child in a group"])
def test_a_resume_asks_before_it_tries_a_failure_again_that_a_child_handled(flowckpt, tmp_path, kind):
    (tmp_path / "bank.py").write_text(ELSEWHERE)
    flowckpt("run", "bank.py:elsewhere", "--id", "one", "-i", f"kind={kind}").expect(1)
    (tmp_path / "printer").touch()
    (tmp_path / "open").touch()
    (tmp_path / "config").write_text("edited")
    plan = flowckpt("plan", "one").expect(10).out
    assert "handled: a rerun would try" in plan
    flowckpt("resume", "one").expect(10)
    assert flowckpt.log() == ["deposit", "refund"]
