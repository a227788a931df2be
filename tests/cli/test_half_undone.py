"""A run that stopped while it was undone, on the command line: what is said of it, and the ways on."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

PROGRAM = """
import os, time
from pathlib import Path
from flowckpt import step, workflow

def note(line):
    with open("log", "a") as file:
        file.write(line + "\\n")

def do(what):
    note(f"do {what}")
    return what

def undo(what):
    if Path(f"dies undoing {what}").exists():
        if Path(f"dies undoing {what}").read_text() == "once":
            Path(f"dies undoing {what}").unlink()
        os.kill(os.getpid(), 9)
    note(f"begin to undo {what}")
    if Path("slow").exists():
        time.sleep(30)
    note(f"undo {what}")

def boom():
    note("boom")
    if not Path("mended").exists():
        raise ValueError("boom")
    return "done"

@workflow
def saga(store: str = "a name that the engine has, too"):
    yield step("a").python(do, "a").rollback(undo).checkpoint()
    # between
    yield step("b").python(do, "b").rollback(undo).checkpoint()
    # before the end
    return (yield step("boom").python(boom))

@workflow
def waiting():
    yield step("a").python(do, "a").rollback(undo).checkpoint()
    # between
    yield step("b").python(do, "b").rollback(undo).checkpoint()
    # before the end
    yield step("go").wait("go")
"""
USED = 'new = yield step("new").python(do, "new"); note(new + "er")'


@pytest.fixture
def sagas(flowckpt: Any) -> Any:
    (flowckpt.directory / "saga.py").write_text(PROGRAM)
    return flowckpt


def edit(sagas: Any, where: str, what: str) -> None:
    (sagas.directory / "saga.py").write_text(PROGRAM.replace(f"# {where}", what))


def dies(sagas: Any, how: str = "once") -> None:
    """Start a run that fails, and whose process is killed while it undoes its newest step."""
    (sagas.directory / "dies undoing b").write_text(how)
    sagas("run", "saga.py:saga", "--id", "one", "-i", "store=s").expect(-signal.SIGKILL)


def test_the_plan_of_a_run_that_died_while_it_was_undone_is_what_its_resume_does(sagas: Any) -> None:
    dies(sagas)
    for command in (["plan", "one"], ["resume", "one", "--plan"], ["plan", "one", "-i", "store=s"]):
        document = sagas(*command, "--json").expect(1).document
        decisions = [(each["path"], each["decision"]) for each in document["steps"]]
        assert decisions == [("b", "undo"), ("a", "undo"), ("boom", "keep")]
        assert (document["undoing"], document["stale"]) == (True, 0)
        assert "stopped during a rollback" in document["stops"]
    said = sagas("plan", "one").expect(1).out
    assert "2 to undo, 1 left as it is\nThe resume would run nothing: " in said
    assert said.endswith("Undo the remaining steps: flowckpt resume one\n")
    assert "it would be undone" in sagas("plan", "one", "b").expect(1).out
    assert "it is left as it is" in sagas("plan", "one", "boom").expect(1).out
    assert sagas.log() == ["do a", "do b", "boom"]
    ran = sagas("resume", "one").expect(1)
    assert sagas.log()[3:] == ["begin to undo b", "undo b", "begin to undo a", "undo a"]
    assert "run 'one' had failed before, and stopped while its steps were undone; that is finished now" in ran.err
    assert "runs again what was undone, and continues" in ran.err
    assert "Every step was restored" not in ran.err
    (sagas.directory / "mended").touch()
    assert sagas("resume", "one", "--json").expect(0).document["output"] == "done"


def test_a_failed_resume_that_restored_all_and_undid_it_does_not_say_that_the_next_ends_the_same_way(
    sagas: Any,
) -> None:
    edit(sagas, "before the end", "if not Path('mended').exists(): raise ValueError('its own')")
    sagas("run", "saga.py:saga", "--id", "one", "--no-rollback").expect(1)
    assert "Every step was restored" in sagas("resume", "one", "--no-rollback").expect(1).err
    assert "Every step was restored" not in sagas("resume", "one").expect(1).err


def test_a_resume_after_an_undo_names_no_step_that_the_workflow_does_not_have(sagas: Any) -> None:
    sagas("run", "saga.py:saga", "--id", "one").expect(1)
    (sagas.directory / "mended").touch()
    assert "dropped" not in sagas("resume", "one", "--force").expect(0).err


def test_a_run_that_dies_in_each_undoing_is_shown_as_in_a_crash_loop(sagas: Any) -> None:
    dies(sagas, "always")
    sagas("resume", "one", "--max-crashes", "2").expect(-signal.SIGKILL)
    for command in (["resume", "one", "--max-crashes", "2"], ["plan", "one"]):
        ran = sagas(*command).expect(15)
        assert "is in a crash loop: its process died 2 times at step 'b@rollback'" in ran.out + ran.err
    assert "crashed (crash loop)" in sagas("list").expect(0).out
    document = sagas("show", "one", "--json").expect(0).document
    assert (document["crash_loop"]["count"], document["crash_loop"]["path"]) == (2, "b@rollback")
    os.remove(sagas.directory / "dies undoing b")
    assert sagas("resume", "one", "--force", "--json").expect(1).document["undone"] == ["b", "a"]


def test_a_second_ctrl_c_says_that_the_resume_undoes(sagas: Any) -> None:
    (sagas.directory / "slow").touch()
    run = sagas.start("run", "saga.py:saga", "--id", "one")
    sagas.wait_for("begin to undo b")
    run.send_signal(signal.SIGINT)
    said = run.communicate(timeout=120)[1]
    assert run.returncode == 130, said
    assert "The next resume undoes the remaining steps and ends the run as before" in said
    assert "Resume with: flowckpt resume one" in said
    assert "2 to undo" in sagas("plan", "one").expect(1).out
    os.remove(sagas.directory / "slow")
    sagas("resume", "one").expect(1)
    assert [each for each in sagas.log() if each.startswith("undo")] == ["undo b", "undo a"]


def test_a_step_added_before_the_one_that_failed_keeps_nothing_from_being_undone(sagas: Any) -> None:
    dies(sagas)
    edit(sagas, "before the end", 'yield step("new").python(do, "new")')
    assert sagas("resume", "one", "--json").expect(1).document["undone"] == ["b", "a"]
    (sagas.directory / "mended").touch()
    sagas("resume", "one").expect(0)
    assert sagas.log()[-4:] == ["do a", "do b", "do new", "boom"]


def test_where_edited_code_does_not_say_how_the_ways_on_are_those_of_the_command(sagas: Any) -> None:
    dies(sagas)
    edit(sagas, "between", USED)
    planned = sagas("plan", "one").expect(14).out
    assert "1 to undo, 1 left as it is, 1 that cannot be undone" in planned
    for options in ([], ["--from", "b"], ["--on-code-change", "rerun"]):
        refused = sagas("resume", "one", *options).expect(14)
        assert "'b': the workflow uses the output of 'new', which was not run" in refused.err
        assert "flowckpt resume" in refused.err and "--force one" in refused.err
        assert "flowckpt cancel --no-rollback one" in refused.err
    assert sagas.log() == ["do a", "do b", "boom"]
    ended = sagas("resume", "one", "--force", "--json").expect(1).document
    assert (ended["undone"], [each["path"] for each in ended["rollback_failures"]]) == (["a"], ["b@rollback"])


def test_cancel_no_rollback_ends_a_run_that_edited_code_cannot_undo(sagas: Any) -> None:
    dies(sagas)
    edit(sagas, "between", USED)
    sagas("cancel", "one", "--no-rollback").expect(0)
    assert not sagas("plan", "one", "--json").document["undoing"]


def test_a_suspended_run_whose_code_was_edited_is_cancelled(sagas: Any) -> None:
    for run in ("one", "two"):
        sagas("run", "saga.py:waiting", "--id", run).expect(3)
    edit(sagas, "before the end", 'yield step("new").python(do, "new")')
    assert sagas("cancel", "one", "--json").expect(0).document["undone"] == ["b", "a"]
    edit(sagas, "between", USED)
    refused = sagas("cancel", "two").expect(14)
    assert "'flowckpt cancel two --force' undoes the others" in refused.err
    assert "--from" not in refused.err and "flowckpt resume" not in refused.err
    document = sagas("cancel", "two", "--force", "--json").expect(0).document
    assert (document["undone"], document["not_undone"]) == (["a"], ["b"])


def test_a_compensation_never_gets_another_default_than_its_step_had(flowckpt):
    program = flowckpt.directory / "pay.py"
    program.write_text(
        "from flowckpt import step, workflow\n"
        "def charge(account, amount=7):\n"
        "    return amount\n"
        "def refund(receipt, amount):\n"
        "    print('refund', receipt, amount)\n"
        "@workflow\n"
        "def pays():\n"
        "    yield step('one').python(charge, 'ann').rollback(refund).checkpoint()\n"
        "    yield step('ask').wait('go')\n"
        "    raise KeyError('end')\n"
    )
    flowckpt("run", "pay.py", "--id", "one").expect(3)
    program.write_text(program.read_text().replace("amount=7", "amount=9"))
    said = flowckpt("cancel", "one").expect(14)
    assert "its function was edited; its compensation would get 'amount', whose default may have changed" in said.err
    flowckpt("signal", "one", "go").expect(0)
    said = flowckpt("resume", "one", "--on-code-change", "reuse").expect(1)
    assert "would get 'amount', whose default may have changed" in said.err and "refund" not in said.out + said.err
    flowckpt("resume", "one", "--on-code-change", "reuse", "--json")
    program.write_text(program.read_text().replace("amount=9", "amount=7"))
    assert "refund 7 7" in (said := flowckpt("cancel", "one")).out + said.err
