"""A recorded failure is one of the same class, however the program is started, and wherever the class is defined now."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import os, signal, sys
from pathlib import Path
from flowckpt import run_sync, step, workflow
from flowckpt.errors import StepFailedError

class Declined(Exception):
    pass

def charge():
    raise Declined("card")

def note(text):
    with open("log", "a") as log:
        print(text, file=log)
    if text == "invoice" and not Path("go_on").exists():
        os.kill(os.getpid(), signal.SIGKILL)
    return text

@workflow
def pay(executor: str = ""):
    charging = step("charge").python(charge).checkpoint()
    try:
        yield charging.on(executor) if executor else charging
    except StepFailedError as error:
        handled = "invoice" if error.failed_with(Declined) else "call somebody"
        return (yield step("handle").python(note, handled).checkpoint())

if __name__ == "__main__":
    run_sync(pay, workflow_id="one", if_exists="resume").unwrap()
"""

SCRIPT = [sys.executable, "pay.py"]
MODULE = [sys.executable, "-m", "pay"]
COMMAND = [sys.executable, "-m", "flowckpt", "run", "pay.py", "--id", "one", "--if-exists", "resume"]


@pytest.mark.parametrize("started", [SCRIPT, MODULE, COMMAND], ids=["script", "module", "command"])
@pytest.mark.parametrize("resumed", [SCRIPT, MODULE, COMMAND], ids=["script", "module", "command"])
def test_the_handler_takes_the_same_branch_however_the_program_is_started(tmp_path, started, resumed):
    (tmp_path / "pay.py").write_text(PROGRAM)
    assert subprocess.run(started, cwd=tmp_path, capture_output=True).returncode == -9
    (tmp_path / "go_on").touch()
    subprocess.run(resumed, cwd=tmp_path, capture_output=True, check=True)
    assert (tmp_path / "log").read_text().splitlines() == ["invoice", "invoice"]


def test_so_it_does_if_the_step_failed_in_a_worker_of_the_script(tmp_path):
    (tmp_path / "pay.py").write_text(PROGRAM.replace('executor: str = ""', 'executor: str = "process"'))
    assert subprocess.run(SCRIPT, cwd=tmp_path, capture_output=True).returncode == -9
    (tmp_path / "go_on").touch()
    subprocess.run(COMMAND, cwd=tmp_path, capture_output=True, check=True)
    assert (tmp_path / "log").read_text().splitlines() == ["invoice", "invoice"]


CLASS = """
class Declined(Exception):
    pass
"""


def test_a_class_that_moved_to_another_module_is_the_same_class(flowckpt, tmp_path):
    (tmp_path / "pay.py").write_text(PROGRAM)
    flowckpt("run", "pay.py", "--id", "one").expect(-9)
    (tmp_path / "go_on").touch()
    (tmp_path / "banking.py").write_text(CLASS)
    (tmp_path / "pay.py").write_text(PROGRAM.replace(CLASS, "\nfrom banking import Declined\n"))
    flowckpt("resume", "one").expect(0)
    assert flowckpt.log() == ["invoice", "invoice"]


@pytest.mark.parametrize("rest", [None, "class Other(Exception):\n    pass\n"], ids=["renamed", "left"])
def test_so_it_is_if_its_module_was_renamed_or_stays_without_it(flowckpt, tmp_path, rest):
    (tmp_path / "banking.py").write_text(CLASS)
    (tmp_path / "pay.py").write_text(PROGRAM.replace(CLASS, "\nfrom banking import Declined\n"))
    flowckpt("run", "pay.py", "--id", "one").expect(-9)
    (tmp_path / "go_on").touch()
    (tmp_path / "banking.py").rename(tmp_path / "accounts.py")
    if rest is not None:
        (tmp_path / "banking.py").write_text(rest)
    (tmp_path / "pay.py").write_text(PROGRAM.replace(CLASS, "\nfrom accounts import Declined\n"))
    flowckpt("resume", "one").expect(0)
    assert flowckpt.log() == ["invoice", "invoice"]


def test_a_class_of_the_same_name_in_another_module_is_another_class(flowckpt, tmp_path):
    (tmp_path / "banking.py").write_text(CLASS)
    program = PROGRAM.replace("raise Declined", "import banking; raise banking.Declined").replace(
        '"invoice" and', '"call somebody" and'
    )
    (tmp_path / "pay.py").write_text(program)
    flowckpt("run", "pay.py", "--id", "one").expect(-9)
    (tmp_path / "go_on").touch()
    flowckpt("resume", "one").expect(0)
    assert flowckpt.log() == ["call somebody", "call somebody"]
