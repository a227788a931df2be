"""A step that must not be done twice, and a process that died in it."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time

import pytest

from flowckpt import FileCheckpointStore, WorkflowEngine
from flowckpt.core.records.wait import birth_of
from flowckpt.errors import RunLockedError, StepInDoubtError
from flowckpt.execution.current_step import find_at_work, mark_of_step
from flowckpt.stores import SqliteCheckpointStore

PROGRAM = """
import hashlib, time
from pathlib import Path
from flowckpt import step, workflow
from flowckpt.evidence import file_sha256

def note(line):
    with open("log", "a") as file:
        file.write(line + "\\n")

def pay(amount, early):
    if early:
        Path("paid").write_text(str(amount))
    note("pay")
    if not Path("quick").exists():
        time.sleep(60)
    Path("paid").write_text(str(amount))
    return amount

DIGEST = hashlib.sha256(b"5").hexdigest()

@workflow
def blind():
    yield step("one").python(int, 1).checkpoint()
    yield step("pay").python(pay, 5, True).at_most_once()

@workflow
def seeing(early: bool):
    yield step("one").python(int, 1).checkpoint()
    yield step("pay").python(pay, 5, early).at_most_once().evidence(file_sha256("paid", DIGEST))
"""


def birth(directory, store=".flowckpt"):
    """The `birth` of run one, by which its commands and workers are found."""
    return birth_of(asyncio.run(FileCheckpointStore(directory / store).load_latest("one")).metadata)


@pytest.fixture
def killed(flowckpt, tmp_path):
    def kill(*arguments):
        (tmp_path / "pay.py").write_text(PROGRAM)
        process = flowckpt.start("run", *arguments, "--id", "one")
        flowckpt.wait_for("pay")
        process.kill()
        process.communicate()
        (tmp_path / "quick").touch()
        return flowckpt

    return kill


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_in_a_step_that_must_run_once_tells_what_the_resume_will_ask(flowckpt, tmp_path, number):
    (tmp_path / "pay.py").write_text(PROGRAM)
    process = flowckpt.start("run", "pay.py:blind", "--id", "one")
    flowckpt.wait_for("pay")
    process.send_signal(number)
    _, err = process.communicate(timeout=120)
    assert "Step pay was stopped, and must run at most once." in err, err
    flowckpt("resume", "one").expect(15)
    flowckpt("resume", "one", "--done", "pay=5").expect(0)


def test_without_evidence_somebody_must_say(killed):
    command = killed("pay.py:blind")
    document = command("plan", "one", "--json").expect(15).document
    assert [planned["decision"] for planned in document["steps"]] == ["reuse", "in_doubt"]
    text = command("plan", "one").expect(15).out
    assert (
        "in doubt  pay" in text
        and "If it was done (with =JSON: its output): flowckpt resume --done pay one" in text
        and "If it was not done, run it: flowckpt resume --not-done pay one" in text
        and "1 reused, 0 to run again, 1 in doubt" in text
    )
    ran = command("resume", "one").expect(15)
    assert "may have had its effect" in ran.err and "flowckpt resume --done pay one" in ran.err
    assert "flowckpt resume --not-done pay one" in ran.err
    assert "resumed from" not in ran.err and ran.out == ""
    assert "pay: in doubt: it is in doubt" in command("plan", "one", "pay").expect(15).out
    assert "pay   -       started, not ended" in command("show", "one", "--steps").expect(0).out
    assert command("show", "one", "--json").document["in_flight"] == ["pay"]
    assert command.log() == ["pay"]
    document = command("resume", "one", "--force", "--json").expect(0).document
    assert document["steps"] == {"executed": 1, "restored": 1, "failed": 0} and command.log() == ["pay", "pay"]
    assert command("show", "one", "--json").document["steps"][1]["marks"] == ["at_most_once"]


def test_what_is_proved_is_adopted(killed):
    command = killed("pay.py:seeing", "-i", "early=true")
    text = command("plan", "one").expect(0).out
    assert "its evidence proves that it was done: it is adopted" in text
    ran = command("resume", "one").expect(0)
    assert "pay: adopted, not run: its evidence proves that it was done" in ran.told
    assert "pay: done" not in ran.err
    assert "steps: 0 executed, 2 restored, 0 failed" in ran.out and command.log() == ["pay"]
    assert command("show", "one", "--json").document["steps"][1]["marks"] == ["at_most_once", "adopted"]
    assert "ok (at most once, adopted)" in command("show", "one", "--steps").out


def test_what_is_denied_is_run(killed):
    command = killed("pay.py:seeing", "-i", "early=false")
    assert "its evidence shows that it was not done: it is run" in command("plan", "one").expect(0).out
    ran = command("resume", "one").expect(0)
    assert "pay: evidence does not prove that it was done: " in ran.err and "  paid does not exist" in ran.err
    assert command.log() == ["pay", "pay"]


def test_a_doubt_that_is_found_on_the_way(killed, tmp_path):
    command = killed("pay.py:blind")
    program = tmp_path / "pay.py"
    program.write_text(program.read_text().replace("python(int, 1)", "python(int, 2)"))
    assert command("plan", "one").expect(15).out.startswith("plan of run one (blind)\nrerun")
    ran = command("resume", "one", "--json").expect(15)
    assert ran.document["status"] == "failed" and ran.document["error"]["type"].endswith("StepInDoubtError")
    assert ran.err.splitlines()[-2].endswith("flowckpt resume --not-done pay one") and command.log() == ["pay"]


# --- a person decides ---------------------------------------------------------------------------------------------------


def test_a_person_says_that_it_was_done_and_with_what(killed):
    command = killed("pay.py:blind")
    plan = command("plan", "one", "--done", "pay=5").expect(0).out
    assert "decided that it was done: it is adopted" in plan and "Resume with: flowckpt resume --done pay=5 one" in plan
    ran = command("resume", "one", "--done", "pay=5", "--by", "ann", "--comment", "it is on the list").expect(0)
    assert "pay: adopted, not run: ann decided that it was done (it is on the list)" in ran.err
    assert command.log() == ["pay"]
    document = command("show", "one", "--json").document
    assert document["steps"][1]["output"] == 5 and document["steps"][1]["marks"] == ["at_most_once", "adopted"]
    (settled,) = document["settled"]
    assert settled.pop("at").endswith("Z")
    assert settled == {"step": "pay", "done": True, "by": "ann", "comment": "it is on the list"}
    assert "settled: ann decided that pay was done (it is on the list), 20" in command("show", "one").out
    assert command("resume", "one").expect(0) and command.log() == ["pay"]


def test_an_output_that_was_forgotten_is_not_taken_for_none(killed):
    command = killed("pay.py:blind")
    for name in ("plan", "resume"):
        assert "--done pay= is not JSON" in command(name, "one", "--done", "pay=").expect(2).err
    assert command.log() == ["pay"] and "settled" not in command("show", "one").out


def test_a_person_says_that_it_was_not_done(killed):
    command = killed("pay.py:blind")
    assert "decided that it was not done: it is run" in command("plan", "one", "--not-done", "pay").expect(0).out
    command("resume", "one", "--not-done", "pay").expect(0)
    assert command.log() == ["pay", "pay"]
    (settled,) = command("show", "one", "--json").document["settled"]
    assert settled["done"] is False and settled["by"], "by default, the user of the machine"


def test_a_decision_counts_once(killed, tmp_path):
    """A process that dies again in the step that a person let run leaves a new doubt."""
    command = killed("pay.py:blind")
    (tmp_path / "quick").unlink()
    process = command.start("resume", "one", "--not-done", "pay")
    for _ in range(12_000):
        if command.log() == ["pay", "pay"]:
            break
        time.sleep(0.01)
    process.kill()
    process.communicate()
    command("resume", "one").expect(15)
    command("resume", "one", "--done", "pay").expect(0)
    assert command.log() == ["pay", "pay"]
    document = command("show", "one", "--json").document
    assert [each["done"] for each in document["settled"]] == [False, True] and document["steps"][1]["output"] is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--done", "one"), "step 'one' of run 'one' is not in doubt; in doubt: 'pay'"),
        (("--not-done", "nothing"), "--not-done nothing: step 'nothing' of run 'one' is not in doubt"),
        (("--done", "pay={"), "--done pay={ is not JSON"),
        (("--done", "pay", "--not-done", "pay"), "step 'pay' cannot be both done and not done"),
        (("--done", "pay", "--done", "pay=5"), "--done pay=… is given twice"),
        (("--comment", "it is on the list"), "give --done or --not-done too"),
    ],
)
def test_what_is_no_decision_is_refused_and_changes_nothing(killed, words, said):
    command = killed("pay.py:blind")
    ran = command("resume", "one", *words).expect(2)
    assert said in ran.err
    assert command.log() == ["pay"] and command("show", "one", "--json").document["attempt"] == 1


@pytest.mark.parametrize(("word", "runs"), [("--done", 1), ("--not-done", 2)])
def test_the_advised_commands_decide_about_an_edited_step_that_was_done(flowckpt, tmp_path, word, runs):
    program = tmp_path / "once.py"
    text = "from flowckpt import step, workflow\ndef pay(n):\n    open('log', 'a').write('pay\\n')\n    return n + 1\n@workflow\ndef flow():\n    return (yield step('pay').python(pay, 1).at_most_once())\n"
    program.write_text(text)
    flowckpt("run", "once.py", "--id", "one").expect(0)
    program.write_text(text.replace("n + 1", "n + 2"))
    ran = flowckpt("resume", "one", "--on-code-change", "rerun").expect(15)
    assert f"flowckpt resume --on-code-change rerun {word} pay one" in ran.err
    done = flowckpt("resume", "--on-code-change", "rerun", word, "pay", "one", "--json").expect(0)
    assert flowckpt.log() == ["pay"] * runs and done.document["output"] == runs + 1
    flowckpt("resume", word, "pay", "one").expect(2)


@pytest.mark.parametrize("dies", [True, False])
def test_a_run_whose_step_may_have_been_done_stays_on_the_old_branch_of_a_patch(flowckpt, tmp_path, dies):
    end = "os.kill(os.getpid(), 9)" if dies else "raise OSError('no answer')"
    program = tmp_path / "once.py"
    text = f"import os\nfrom flowckpt import patched, step, workflow\ndef pay(by):\n    open('log', 'a').write(f'{{by}}\\n')\n    {end}\n@workflow\ndef flow():\n    PAY\n"
    old, new = (f"yield step('{name}').python(pay, '{name}').at_most_once()" for name in ("old", "new"))
    program.write_text(text.replace("PAY", old))
    assert flowckpt("run", "once.py", "--id", "one").code != 0
    program.write_text(text.replace("PAY", f"if (yield patched('v2')):\n        {new}\n    else:\n        {old}"))
    for command in ("plan", "resume"):
        flowckpt(command, "one").expect(15)
    assert flowckpt.log() == ["old"]
    flowckpt("resume", "one", "--done", "old").expect(0)
    assert flowckpt.log() == ["old"]
    assert flowckpt("run", "once.py", "--id", "two").code != 0 and flowckpt.log() == ["old", "new"]


PAYS = "yield step('pay').python(pay, 'pay').at_most_once()"
LATER = "yield step('later').python(pay, 'later').rollback(undo)"
MOVED = {
    "a renamed step": (PAYS, PAYS.replace("'pay'", "'pay2'"), "pay", 0),
    "a removed step": (PAYS, "pass", "pay", 0),
    "a removed step, with others that run before the end shows it": (PAYS, LATER, "pay", 1),
    "a step before it": (PAYS, PAYS.replace("'pay'", "'first'") + "; " + PAYS, "pay", 0),
    "a renamed key": (
        "yield step('all').map(pay, ['a', 'b'], key=str, concurrency=1).at_most_once()",
        "yield step('all').map(pay, ['b', 'c'], key=str, concurrency=1).at_most_once()",
        "all/[a]",
        0,
    ),
    "a renamed map": (
        "yield step('all').map(pay, ['a'], key=str).at_most_once()",
        "yield step('each').map(pay, ['a'], key=str).at_most_once()",
        "all/[a]",
        0,
    ),
    "a step that moves into a group": (PAYS, f"yield from parallel({PAYS[6:]})", "pay", 0),
    "a renamed step of a child": (
        "yield step('child').workflow(child)",
        "yield step('child').workflow(other)",
        "child/pay",
        0,
    ),
    "a child that raises before it, and a step instead": (
        "yield step('child').workflow(child)",
        (
            "try:\n        yield step('child').workflow(raising)\n"
            "    except Exception:\n        yield step('instead').python(pay, 'instead').at_most_once()"
        ),
        "child/pay",
        None,  # a plan ends at a child that raises
    ),
    "a child that raises before it, which is ignored": (
        "yield step('child').workflow(child)",
        "try:\n        yield step('child').workflow(raising)\n    except Exception:\n        pass",
        "child/pay",
        None,  # a plan ends at a child that raises
    ),
    "a member that raises before it, which is tolerated": (
        "yield step('all').map(each, ['a'], key=str)",
        "yield step('all').map(raising_each, ['a'], key=str, tolerate=1)",
        "all/[a]/pay",
        None,  # a plan ends at a child that raises
    ),
}


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), 9)", "raise OSError('no answer')"])
@pytest.mark.parametrize("edit", MOVED)
def test_no_edit_makes_a_run_forget_a_step_that_may_have_been_done(flowckpt, tmp_path, edit, end):
    old, new, doubt, late = MOVED[edit]
    text = f"""
import os
from flowckpt import parallel, step, workflow
def pay(by):
    open('log', 'a').write(by + '\\n')
    if not os.path.exists('quiet'):
        {end}
def undo(value):
    open('log', 'a').write('undo\\n')
@workflow('child')
def child():
    {PAYS}
@workflow('child')
def each(name):
    {PAYS}
@workflow('child')
def other():
    {PAYS.replace("'pay'", "'pay2'")}
@workflow('child')
def raising():
    raise ValueError('too early')
    yield
@workflow('child')
def raising_each(name):
    raise ValueError('too early')
    yield
@workflow
def flow():
    yield step('one').python(int, 1).checkpoint()
    BODY
"""
    program = tmp_path / "once.py"
    program.write_text(text.replace("BODY", old))
    assert flowckpt("run", "once.py:flow", "--id", "one").code != 0
    program.write_text(text.replace("BODY", new))
    (tmp_path / "quiet").touch()
    before = flowckpt.log()
    assert len(before) == 1
    if late == 0:
        flowckpt("plan", "one").expect(15)
    for _ in range(2):
        refused = flowckpt("resume", "one").expect(15)
        assert f"resume --not-done {shlex.quote(doubt)} one" in refused.err, refused.err
    assert flowckpt.log() == before + ["later"] * (late or 0)  # nothing else ran, and nothing is undone
    flowckpt("resume", "one", "--done", doubt).expect(0)
    once = flowckpt.log()
    flowckpt("resume", "one").expect(0)
    assert flowckpt.log() == once, "what was decided is not asked again"
    flowckpt("run", "once.py:flow", "--id", "two").expect(0)
    clean = flowckpt.log()[len(once) :]
    if edit == "a step before it":
        clean.remove("pay")  # the only one that the code still yields, and it is done
    assert once == before + clean


def test_an_output_of_another_type_is_refused(killed, tmp_path):
    program = tmp_path / "pay.py"
    command = killed("pay.py:blind")
    program.write_text(
        program.read_text().replace("def pay(amount, early):", "def pay(amount: int, early: bool) -> int:")
    )
    ran = command("resume", "one", "--done", 'pay="five"').expect(2)
    assert "the output of step 'pay' must be" in ran.err
    command("resume", "one", "--done", "pay=5").expect(0)
    assert command.log() == ["pay"]


def test_a_step_that_was_interrupted_is_not_in_doubt(flowckpt, tmp_path):
    (tmp_path / "pay.py").write_text(PROGRAM.replace(".at_most_once()", "").replace('"one").python', '"one").python'))
    process = flowckpt.start("run", "pay.py:blind", "--id", "one")
    flowckpt.wait_for("pay")
    process.kill()
    process.communicate()
    (tmp_path / "quick").touch()
    plan = flowckpt("plan", "one").expect(0).out
    assert "interrupted  pay" in plan and "it was running when its process died; it runs again" in plan
    assert "1 interrupted" in plan and "in doubt" not in plan
    assert flowckpt("plan", "one", "--json").document["steps"][1]["decision"] == "interrupted"
    flowckpt("resume", "one", "--done", "pay").expect(2)
    flowckpt("resume", "one").expect(0)


CHANGED = """
from pathlib import Path
from flowckpt import step, workflow

def amount():
    return int(Path("amount").read_text())

def pay():
    Path("log").open("a").write("pay\\n")

@workflow
def flow():
    yield step("amount").python(amount).reads("amount").checkpoint()
    yield step("pay").python(pay).at_most_once().checkpoint()
"""


def test_a_done_step_before_which_something_changed_is_kept_or_repeated_by_a_person(flowckpt, tmp_path):
    (tmp_path / "pay.py").write_text(CHANGED)
    (tmp_path / "amount").write_text("1")
    flowckpt("run", "pay.py", "--id", "one").expect(0)
    (tmp_path / "amount").write_text("2")
    ran = flowckpt("resume", "one", "--on-stale", "rerun").expect(15)
    assert "has had its effect: it was done, something that it depends on has changed since" in ran.err
    assert "Keep its recorded result (with =JSON: another output): flowckpt resume" in ran.err
    assert "run it again: flowckpt resume --on-stale rerun --not-done pay one" in ran.err
    assert "Find out" not in ran.err
    flowckpt("resume", "one", "--on-stale", "rerun", "--done", "pay").expect(0)
    assert (tmp_path / "log").read_text() == "pay\n"


AFTER_A_PRICE = """
from flowckpt import step, workflow
def note(line):
    with open("log", "a") as file:
        file.write(f"{line}\\n")
    return line
def price(n):
    return min(n, 3)
def fail():
    raise OSError("away")
@workflow
def flow():
    amount = yield step("price").python(price, 1).checkpoint()
    paid = yield step("pay").python(note, amount).at_most_once()
    yield step("last").python(fail)
    return paid
"""


@pytest.mark.parametrize(("before", "after"), [("1", "2"), ("3", "4")], ids=["another price", "the same price"])
@pytest.mark.parametrize("is_done", [True, False])
def test_the_commands_that_a_plan_advises_decide_about_a_step_that_was_done(flowckpt, tmp_path, before, after, is_done):
    program, text = tmp_path / "pay.py", AFTER_A_PRICE.replace("price, 1", f"price, {before}")
    program.write_text(text)
    flowckpt("run", "pay.py", "--id", "one").expect(1)
    for word in ("--done", "--not-done"):
        for command in ("plan", "resume"):
            said = flowckpt(command, word, "pay", "one").expect(2).err
            assert f"{word} pay: step 'pay' of run 'one' is not in doubt; none of its steps is" in said
    program.write_text(text.replace(f"price, {before}", f"price, {after}").replace('raise OSError("away")', "pass"))
    planned = flowckpt("plan", "one").expect(15).out
    way = "Keep its recorded result" if is_done else "If its effect is gone, or may happen twice, run it again"
    (advised,) = re.findall(f"{way}.*: flowckpt (.+)", planned)
    flowckpt("plan", *shlex.split(advised)[1:]).expect(10)
    done = flowckpt(*shlex.split(advised), "--json").expect(0).document
    clean = 2 if after == "2" else 3
    assert flowckpt.log() == ([before] if is_done else [before, str(clean)])
    assert done["output"] == (int(before) if is_done else clean)


TWO = """
import os
from flowckpt import step, workflow
from pathlib import Path

def pay(who):
    with open("log", "a") as file:
        file.write(f"pay {who}\\n")
    if len(Path("log").read_text().splitlines()) >= 2 and not Path("quick").exists():
        os.kill(os.getpid(), 9)
    while not Path("quick").exists():
        pass
    return who

@workflow
def two():
    return (yield step("pay").map(pay, ["ann", "bob"], key=str).at_most_once())
"""


def test_the_way_on_for_a_second_step_in_doubt_keeps_the_decision_on_the_first(flowckpt, tmp_path):
    (tmp_path / "pay.py").write_text(TWO)
    flowckpt("run", "pay.py", "--id", "one").expect(-signal.SIGKILL)
    (tmp_path / "quick").touch()
    for first in ("--done", "--not-done"):
        err = flowckpt("resume", "one", first, "pay/[ann]").expect(15).err
        assert f"flowckpt resume {first} 'pay/[ann]' --done 'pay/[bob]' one" in err
        assert f"flowckpt resume {first} 'pay/[ann]' --not-done 'pay/[bob]' one" in err
    flowckpt("resume", "one", "--done", 'pay/[ann]="ann"', "--not-done", "pay/[bob]").expect(0)
    assert [line for line in flowckpt.log() if "bob" in line] == ["pay bob"] * 2


@pytest.mark.parametrize("words", [("--done", "a"), ("--done", "a=1"), ("--not-done", "a")])
def test_the_way_on_leaves_out_a_decision_that_was_followed(flowckpt, tmp_path, words):
    (tmp_path / "two.py").write_text("""
from flowckpt import step, workflow
def make():
    open("made", "w").close()
def pay(name):
    with open("log", "a") as file:
        file.write(name + "\\n")
@workflow
def flow():
    yield step("make").python(make).writes("made").checkpoint()
    for name in "ab":
        yield step(name).python(pay, name).at_most_once()
""")
    flowckpt("run", "two.py", "--id", "one").expect(0)
    (tmp_path / "made").unlink()
    flowckpt("resume", "one").expect(15)
    err = flowckpt("resume", *words, "one").expect(15).err
    (printed,) = re.findall(r"Keep its recorded result .*: flowckpt (.+)", err)
    flowckpt(*shlex.split(printed)).expect(0)
    assert sorted(flowckpt.log()) == ["a", "a", "b"] if words[0] == "--not-done" else ["a", "b"]


def test_a_cancelled_run_names_its_step_in_doubt(killed):
    command = killed("pay.py:blind")
    ran = command("cancel", "one").expect(0)
    assert "step pay had started and has no recorded end, so it was not undone. Check whether it was done." in ran.err
    assert command("cancel", "one", "--json").expect(0).document["in_doubt"] == ["pay"]


DYING = """
import os
from flowckpt import step, workflow

def do(number):
    print("do", number, file=open("log", "a"))
    if os.environ.get("DIES_AT") == f"do {number}":
        os.kill(os.getpid(), 9)
    return number

def undo(number):
    if os.environ.get("DIES_AT") == f"undo {number}":
        os.kill(os.getpid(), 9)
    print("undo", number, file=open("log", "a"))

@workflow
def trip():
    for number in range(4):
        yield step(f"do{number}").python(do, number).rollback(undo).checkpoint()
"""


@pytest.mark.parametrize("deaths", [[], ["undo 1"], ["undo 1", "undo 0"]])
def test_a_cancel_that_dies_forgets_no_step_whose_effect_is_unknown(flowckpt, tmp_path, deaths):
    (tmp_path / "trip.py").write_text(DYING)
    flowckpt("run", "trip.py", "--id", "one", DIES_AT="do 2").expect(-signal.SIGKILL)
    for death in deaths:
        flowckpt("cancel", "one", DIES_AT=death).expect(-signal.SIGKILL)
    assert flowckpt("cancel", "one", "--json").expect(0).document["in_doubt"] == ["do2"]
    assert flowckpt.log() == ["do 0", "do 1", "do 2", "undo 1", "undo 0"]
    flowckpt("resume", "one").expect(0)
    assert flowckpt.log()[5:] == ["do 0", "do 1", "do 2", "do 3"]


def test_a_cancel_names_what_the_first_of_two_crashes_left(flowckpt, tmp_path):
    """The second attempt does not come to the step that the first one had started."""
    (tmp_path / "trip.py").write_text(DYING.replace(".checkpoint()", ""))
    flowckpt("run", "trip.py", "--id", "one", DIES_AT="do 2").expect(-signal.SIGKILL)
    flowckpt("resume", "one", DIES_AT="do 0").expect(-signal.SIGKILL)
    assert flowckpt("cancel", "one", "--json").expect(0).document["in_doubt"] == ["do0", "do1", "do2"]


@pytest.mark.parametrize("between", [("tag", "one", "day=monday"), ("rollback", "one", "@started")], ids=str)
def test_a_tag_or_a_rollback_after_a_crash_forgets_no_step_whose_effect_is_unknown(flowckpt, tmp_path, between):
    (tmp_path / "trip.py").write_text(DYING)
    flowckpt("run", "trip.py", "--id", "one", DIES_AT="do 2").expect(-signal.SIGKILL)
    flowckpt(*between).expect(0)
    assert flowckpt("cancel", "one", "--json").expect(0).document["in_doubt"] == ["do2"]


# --- somebody may still be doing it -----------------------------------------------------------------------------------


@pytest.mark.parametrize("decides", [True, False])
def test_an_owner_that_may_still_run_the_step_is_remembered_until_it_is_dead_or_somebody_decides(
    flowckpt, tmp_path, decides
):
    (tmp_path / "pay.py").write_text(PROGRAM)
    owner = flowckpt.start("run", "pay.py:seeing", "-i", "early=false", "--id", "one")
    try:
        flowckpt.wait_for("pay")
        owner.send_signal(signal.SIGSTOP)
        (tmp_path / "quick").touch()
        for arguments in (("--steal", "--from", "one"), (), ()):
            ran = flowckpt("resume", "one", *arguments).expect(15)
            assert f"process {owner.pid} on" in ran.err and "may still be running it" in ran.err
        assert "may still be running it" in flowckpt("plan", "one").expect(15).out
        assert flowckpt.log() == ["pay"]
        if decides:
            flowckpt("resume", "one", "--not-done", "pay").expect(0)
    finally:
        owner.kill()
        owner.communicate()
    if not decides:
        flowckpt("resume", "one").expect(0)
    assert flowckpt.log() == ["pay", "pay"]


COMMAND = """
import hashlib
from flowckpt import step, workflow
from flowckpt.evidence import file_sha256

@workflow
def pays():
    script = "echo pay >> log; while [ ! -e quick ]; do sleep 0.1; done; printf 5 > paid"
    yield step("pay").command(["sh", "-c", script]).at_most_once().evidence(
        file_sha256("paid", hashlib.sha256(b"5").hexdigest())
    )
"""


def leave_command(flowckpt):
    """Kill a run whose command goes on."""
    (flowckpt.directory / "pay.py").write_text(COMMAND)
    owner = flowckpt.start("run", "pay.py", "--id", "one")
    flowckpt.wait_for("pay")
    owner.kill()
    owner.wait()
    owner.stdout.close(), owner.stderr.close()  # the command holds the other ends


@pytest.mark.skipif(not os.path.exists("/proc/self/environ"), reason="the system lists no processes")
@pytest.mark.parametrize("ends_well", [True, False])
def test_a_command_that_outlives_its_process_is_not_run_beside_itself(flowckpt, tmp_path, ends_well):
    leave_command(flowckpt)
    ran = flowckpt("resume", "one").expect(15)
    command = int(re.search(r"its command still runs \(process (\d+)", ran.err)[1])
    assert "pay" in flowckpt("recover").expect(1).err
    (tmp_path / "pay.py").write_text(COMMAND.replace("printf 5", "printf  5"))  # an edit makes it no other step
    flowckpt("resume", "one").expect(15)
    assert flowckpt.log() == ["pay"]
    if not ends_well:
        os.kill(command, signal.SIGKILL)
    (tmp_path / "quick").touch()
    while find_at_work(birth(tmp_path), "pay"):  # the command, or what it started, has not ended
        time.sleep(0.05)
    flowckpt("resume", "one").expect(0)
    assert (flowckpt.log(), (tmp_path / "paid").read_text()) == (["pay"] if ends_well else ["pay", "pay"], "5")


POOL = """
import os, time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from flowckpt import FileCheckpointStore, WorkflowEngine, step, workflow
from flowckpt.evidence import predicate

def pay():
    with open("log", "a") as file:
        file.write("pay\\n")
    while not Path("quick").exists():
        time.sleep(0.05)
    Path("paid").touch()

def is_paid():
    return Path("paid").exists()

@workflow
def pays():
    yield step("pay").python(pay).on("pool").at_most_once().evidence(predicate(is_paid))

if __name__ == "__main__":
    engine = WorkflowEngine(FileCheckpointStore("runs"), executors={"pool": lambda: ProcessPoolExecutor(1)})
    engine.run_sync(pays, workflow_id="one", if_exists="resume").unwrap()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has abstract sockets")
def test_a_worker_that_outlives_its_engine_is_not_helped_by_another_one(flowckpt, tmp_path):
    (tmp_path / "pay.py").write_text(POOL)
    environment = {**flowckpt.environment, "PYTHONPATH": str(tmp_path)}
    owner = subprocess.Popen([sys.executable, "pay.py"], cwd=tmp_path, env=environment)
    flowckpt.wait_for("pay")
    owner.kill()
    owner.wait()

    def resume():
        return subprocess.run([sys.executable, "pay.py"], cwd=tmp_path, env=environment, capture_output=True, text=True)

    refused = resume()
    assert re.search(r"its worker still runs \(process [1-9]", refused.stderr), refused.stderr
    (tmp_path / "quick").touch()
    while find_at_work(birth(tmp_path, "runs"), "pay"):
        time.sleep(0.05)
    assert resume().returncode == 0
    assert flowckpt.log() == ["pay"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has abstract sockets")
def test_a_fork_remembers_a_worker_of_its_source_that_cannot_be_identified(killed, tmp_path):
    """A child that the worker has forked holds its name when the worker is gone."""
    command = killed("pay.py:seeing", "-i", "early=false")
    with socket.socket(socket.AF_UNIX) as held:
        held.bind(f"\0flowckpt/{mark_of_step(birth(tmp_path), 'pay')}/999999999")
        assert "its worker still runs (process 999999999)" in command("resume", "one").expect(15).err
        command("fork", "one", "--id", "two").expect(0)
    assert "process 999999999 on an unseen system" in command("resume", "two").expect(15).err
    command("resume", "one").expect(0)


TOLERATED = """
import os, signal
from flowckpt import step, workflow

def pay(number):
    with open("log", "a") as file:
        file.write(f"pay {number}\\n")
    if number == 2 and not os.path.exists("open"):
        raise ValueError("the bank is closed")
    return number

def die():
    if not os.path.exists("died"):
        open("died", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)

@workflow
def pays():
    yield step("pays").map(pay, [1, 2], concurrency=1, tolerate=1).at_most_once().checkpoint()
    yield step("die").python(die).checkpoint()
"""


@pytest.mark.parametrize("decision", ["--not-done", "--done"])
def test_a_decision_about_a_tolerated_failure_is_taken(flowckpt, tmp_path, decision):
    (tmp_path / "pay.py").write_text(TOLERATED)
    flowckpt("run", "pay.py", "--id", "one").expect(-signal.SIGKILL)
    assert "in doubt: 'pays/[1]'" in flowckpt("resume", "one", decision, "die").expect(2).err
    flowckpt("resume", "one", decision, "pays/[1]").expect(0)
    assert flowckpt.log() == ["pay 1", "pay 2"]


# --- forks of a run in doubt ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("checkpoint", ["one", "@started", "@in_doubt"])
def test_a_fork_of_any_checkpoint_keeps_the_doubt_of_its_source(killed, checkpoint):
    command = killed("pay.py:blind")
    command("fork", "one", "--checkpoint", checkpoint, "--id", "two").expect(0)
    command("resume", "two").expect(15)
    assert "in doubt  pay" in command("plan", "two").expect(15).out
    command("fork", "two", "--checkpoint", "@forked", "--id", "three").expect(0)
    command("resume", "three").expect(15)
    assert command.log() == ["pay"]
    command("resume", "two", "--not-done", "pay").expect(0)


def test_a_fork_of_an_earlier_checkpoint_finds_a_step_in_doubt_under_another_name(killed, tmp_path):
    command = killed("pay.py:blind")
    command("fork", "one", "--checkpoint", "one", "--id", "two").expect(0)
    (tmp_path / "pay.py").write_text(
        PROGRAM.replace('step("pay").python(pay, 5, True)', 'step("charge").python(pay, 5, True)')
    )
    assert "'pay'" in command("resume", "two").expect(15).err
    assert command.log() == ["pay"]


def test_a_fork_does_not_do_what_its_source_is_doing_at_this_moment(flowckpt, tmp_path):
    (tmp_path / "pay.py").write_text(PROGRAM)
    owner = flowckpt.start("run", "pay.py:seeing", "-i", "early=false", "--id", "one")
    try:
        flowckpt.wait_for("pay")
        flowckpt("fork", "one", "--id", "two").expect(0)
        assert f"process {owner.pid} on" in flowckpt("resume", "two").expect(15).err
        assert flowckpt.log() == ["pay"]
    finally:
        owner.kill()
        owner.communicate()
    (tmp_path / "quick").touch()
    flowckpt("resume", "two").expect(0)
    assert flowckpt.log() == ["pay", "pay"]


@pytest.mark.skipif(not os.path.exists("/proc/self/environ"), reason="the system lists no processes")
def test_a_fork_does_not_do_what_a_command_of_its_dead_source_still_does(flowckpt, tmp_path):
    leave_command(flowckpt)
    flowckpt("fork", "one", "--id", "two").expect(0)
    assert "may still be running it" in flowckpt("resume", "two").expect(15).err
    (tmp_path / "quick").touch()
    while find_at_work(birth(tmp_path), "pay"):
        time.sleep(0.05)
    flowckpt("resume", "two").expect(0)
    assert flowckpt.log() == ["pay"]


OWNER = """
import os, sys
if sys.argv[1] != "here":
    name = type("Name", (), {"nodename": sys.argv[1]})()
    os.uname = lambda: name
from flowckpt import WorkflowEngine
from flowckpt.stores import SqliteCheckpointStore
from pay import seeing
WorkflowEngine(SqliteCheckpointStore("runs.db", lease_seconds=1)).run_sync(seeing, workflow_id="one", early=False)
"""


@pytest.mark.parametrize("place", ["here", "another-machine"])
def test_after_a_lease_ran_out_not_done_is_believed_only_of_an_owner_known_to_be_dead(
    flowckpt, tmp_path, monkeypatch, place
):
    (tmp_path / "pay.py").write_text(PROGRAM)
    owner = subprocess.Popen([sys.executable, "-c", OWNER, place], cwd=tmp_path)
    try:
        flowckpt.wait_for("pay")
    finally:
        owner.kill()
        owner.wait()
    (tmp_path / "quick").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "pay", raising=False)
    from pay import seeing

    engine = WorkflowEngine(SqliteCheckpointStore("runs.db", lease_seconds=1))
    outcome = None
    for _ in range(100):
        try:
            outcome = engine.resume_sync(seeing, workflow_id="one").status
            break
        except RunLockedError:
            time.sleep(0.1)
        except StepInDoubtError as doubt:
            outcome = str(doubt)
            break
    monkeypatch.delitem(sys.modules, "pay")
    if place == "here":
        assert (outcome, flowckpt.log()) == ("completed", ["pay", "pay"])
    else:
        assert f"process {owner.pid} on another-machine) may still be running it" in outcome
        assert flowckpt.log() == ["pay"]


SAGA = """
import os
from flowckpt import step, workflow
from flowckpt.evidence import file_sha256
EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
def note(line):
    with open("log", "a") as file:
        file.write(line + "\\n")
def work(name):
    if name == "reserve" and os.path.exists("down"):
        raise OSError("service down")
    if name == "pay" and os.path.exists("fails early"):
        raise OSError("refused")
    note(name)
    if name == "pay":
        open("paid", "w").close()
        if os.path.exists("fails late"):
            raise OSError("connection lost")
def reserve(name):
    work(name)
def undo(value):
    note("undo")
def names():
    return sorted(os.listdir("in"))
@workflow
def saga():
    yield step("reserve").python(reserve, "reserve").at_most_once().rollback(undo)
    pay = step("pay").python(work, "pay").at_most_once()
    yield pay.evidence(file_sha256("paid", EMPTY)) if os.path.exists("proof") else pay
@workflow
def alike():
    yield step("reserve").python(work, "reserve").at_most_once().rollback(undo)
    yield step("pay").python(work, "pay").at_most_once().evidence(file_sha256("paid", EMPTY))
@workflow
def growing():
    for name in (yield step("names").python(names).ephemeral()):
        yield step("upload " + name).python(reserve, name).at_most_once()
    yield step("pay").python(work, "pay").at_most_once().evidence(file_sha256("paid", EMPTY))
"""


@pytest.fixture
def paying(flowckpt, tmp_path):
    (tmp_path / "saga.py").write_text(SAGA)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a").touch()
    return flowckpt


def note(command, *names):
    for name in names:
        (command.directory / name).touch()


def drop(command, name):
    (command.directory / name).unlink()


@pytest.mark.parametrize("name", ["saga", "alike"])
def test_an_undone_step_that_runs_again_before_the_doubt_is_no_other_step(paying, name):
    note(paying, "proof", "fails early")
    paying("run", f"saga.py:{name}", "--id", "one").expect(1)
    paying("resume", "one").expect(1)
    drop(paying, "fails early")
    paying("plan", "one").expect(0)
    paying("resume", "one").expect(0)  # the evidence denies the payment
    assert paying.log()[-2:] == ["reserve", "pay"] and paying.log().count("pay") == 1


def test_a_list_that_grew_before_the_doubt_asks_nothing(paying):
    note(paying, "fails early")
    paying("run", "saga.py:growing", "--id", "one").expect(1)
    drop(paying, "fails early")
    note(paying, "in/b")
    paying("resume", "one").expect(0)
    assert paying.log() == ["a", "b", "pay"]


def test_a_forced_resume_checks_the_evidence_of_a_doubt_behind_a_step_that_runs_again(paying):
    note(paying, "proof", "fails late")
    paying("run", "saga.py:saga", "--id", "one").expect(1)
    drop(paying, "fails late")
    paying("resume", "--force", "one").expect(0)
    assert paying.log().count("pay") == 1


def test_a_decision_whose_step_was_not_reached_leaves_the_doubt(paying):
    note(paying, "fails late")
    paying("run", "saga.py:saga", "--id", "one").expect(1)
    drop(paying, "fails late")
    note(paying, "down")
    paying("resume", "--done", "pay", "one").expect(1)
    drop(paying, "down")
    assert "'pay' must run at most once" in paying("resume", "--not-done", "reserve", "one").expect(15).err
    paying("resume", "--done", "pay", "one").expect(0)
    assert paying.log().count("pay") == 1
