"""A step that must not be done twice, and a process that died in it."""

from __future__ import annotations

import pytest

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


def test_without_evidence_somebody_must_say(killed):
    command = killed("pay.py:blind")
    document = command("plan", "one", "--json").expect(15).document
    assert [planned["decision"] for planned in document["steps"]] == ["reuse", "in_doubt"]
    text = command("plan", "one").expect(15).out
    assert (
        "in doubt  pay" in text
        and "flowckpt resume --force one" in text
        and "1 reused, 0 run again, 1 in doubt" in text
    )
    ran = command("resume", "one").expect(15)
    assert "nobody knows whether it was" in ran.err and "flowckpt resume --force one" in ran.err
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
    assert "pay: evidence proves that it was done (1 claim)" in ran.err
    assert (
        "pay: adopted, not run: its evidence proves that it was done" in ran.err
        and "pay: done" not in ran.err
        and "pay: started" not in ran.err
    )
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
    assert ran.err.splitlines()[-2].endswith("flowckpt resume --force one") and command.log() == ["pay"]
