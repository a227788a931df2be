"""A resume runs in the directory in which the run was started: its steps and its evidence see the same files."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys

import pytest

from tests.cli.conftest import Command

PROGRAM = """
import os
from pathlib import Path
from flowckpt import step, workflow
from flowckpt.evidence import file_sha256

def write(name):
    Path(name).write_text(name)
    return os.getcwd()

def read(name):
    if not Path("ready").exists():
        raise ValueError("not ready")
    return [os.getcwd(), Path(name).read_text()]

def unwrite(output):
    Path("undone").write_text(os.getcwd())

@workflow
def files():
    yield step("write").python(write, "a.txt").evidence(file_sha256("a.txt")).rollback(unwrite).checkpoint()
    here = os.getcwd()
    seen = yield step("read").python(read, "a.txt")
    yield step("log").command(["cp", "a.txt", "b.txt"])
    return [here, *seen]
"""


@pytest.fixture
def started(tmp_path):
    """The commands in the directory of the run and in another one; the store is named by its path."""
    start, other = tmp_path / "start", tmp_path / "other"
    start.mkdir(), other.mkdir()
    (start / "files.py").write_text(PROGRAM)
    here = Command(start)
    here("run", "files.py", "--id", "r", "--no-rollback").expect(1)
    return here, Command(other, {"FLOWCKPT_STORE": str(start / ".flowckpt")})


def test_a_resume_from_elsewhere_runs_where_the_run_was_started(started):
    here, other = started
    (here.directory / "ready").touch()
    plan = other("plan", "r", "--json").document
    assert [step["decision"] for step in plan["steps"]] == ["reuse", "rerun"]
    resumed = other("resume", "r", "--json").expect(0)
    start = str(here.directory)
    assert resumed.document["output"] == [start, start, "a.txt"]
    assert f"working in {start}, the directory of run r; to move the run to the current directory: " in resumed.err
    assert (here.directory / "b.txt").exists() and os.listdir(other.directory) == []


def test_here_moves_the_run_with_its_evidence(started):
    here, other = started
    (other.directory / "ready").touch()
    plan = other("plan", "r", "--here", "--json").document
    assert [step["decision"] for step in plan["steps"]][0] == "rerun"  # a.txt is not here
    other("resume", "r", "--here", "--json").expect(0)
    assert sorted(os.listdir(other.directory)) == ["a.txt", "b.txt", "ready"]
    assert not (here.directory / "b.txt").exists()
    (other.directory / "a.txt").write_text("edited")  # the run is here from now on, also for a resume from anywhere
    assert here("plan", "r", "--json").document["stale"] > 0


def test_a_relative_target_and_a_relative_store_are_those_of_the_shell(started):
    here, other = started
    (here.directory / "ready").touch()
    os.rename(here.directory / "files.py", other.directory / "moved.py")
    resumed = other("resume", "r", "--store", "../start/.flowckpt", "--target", "moved.py:files", "--json").expect(0)
    assert resumed.document["output"][0] == str(here.directory)


def test_a_directory_that_is_gone_is_named(started, tmp_path):
    here, _ = started
    os.rename(here.directory, tmp_path / "moved")
    moved = Command(tmp_path / "moved")
    refused = moved("resume", "r").expect(2)
    assert f"was started in {here.directory}, which cannot be entered: No such file or directory" in refused.err
    assert "Resume with" not in refused.err
    (moved.directory / "ready").touch()
    advice = refused.err.split("'flowckpt ")[1].split("'")[0]
    resumed = moved(*shlex.split(advice), "--json").expect(0)  # with the program that moved, too
    assert resumed.document["output"] == [str(moved.directory), str(moved.directory), "a.txt"]


@pytest.fixture
def copied(started, tmp_path):
    """The commands in the directory of the run and in a copy of it, which are ready; the program of the copy differs."""
    here, _ = started
    (here.directory / "ready").touch()
    there = Command(tmp_path / "copy")
    shutil.copytree(here.directory, there.directory)
    (there.directory / "files.py").write_text(
        f"{PROGRAM}    return 'of the copy'\n".replace("    return [here", "    [here")
    )
    return here, there


def test_a_resume_in_a_copied_directory_says_that_it_works_in_the_first_one(copied):
    here, there = copied
    for name in ("plan", "resume"):
        ran = there(name, "r").expect(0)
        assert f"working in {here.directory}, the directory of run r" in ran.err
    assert (here.directory / "b.txt").exists() and not (there.directory / "b.txt").exists()
    assert "working in" not in there("plan", "--all").expect(0).err
    assert "working in" not in here("resume", "r").expect(0).err


def test_here_takes_the_program_of_the_copied_directory(copied):
    here, there = copied
    (said,) = (line for line in there("plan", "r").err.splitlines() if "working in" in line)
    advice = said.split("'flowckpt ")[1].rstrip("'")
    assert there(*shlex.split(advice), "--json").expect(0).document["output"] == "of the copy"
    assert (there.directory / "b.txt").exists() and not (here.directory / "b.txt").exists()
    assert f"target: {there.directory / 'files.py'}:files" in there("show", "r").out


def test_a_rollback_a_fork_and_a_cancel_with_here_record_the_program_of_the_copied_directory(copied):
    here, there = copied
    there("rollback", "r", "@started", "--here").expect(0)
    there("fork", "r", "--id", "f", "--here").expect(0)
    here("cancel", "r").expect(0)
    there("cancel", "r", "--here").expect(0)
    for run in ("r", "f"):
        assert f"target: {there.directory / 'files.py'}:files" in there("show", run).out


def test_a_cancel_from_elsewhere_undoes_where_the_run_was_started(started):
    here, other = started
    other("cancel", "r").expect(0)
    assert (here.directory / "undone").read_text() == str(here.directory)


CLAIMS = """
import os
from flowckpt import step, workflow
from flowckpt.evidence import predicate

def is_written(name):
    return os.path.exists(name)

def write(name):
    open(name, "w").close()

@workflow
def claims():
    yield step("write").python(write, "a.txt").evidence(predicate(is_written, "a.txt")).checkpoint("written")
    yield step("more").python(os.getcwd)
"""


@pytest.fixture
def claimed(tmp_path):
    """A run whose claim only its program can answer, with a path from the current directory."""
    start, other = tmp_path / "start", tmp_path / "other"
    start.mkdir(), other.mkdir()
    (start / "claims.py").write_text(CLAIMS)
    here = Command(start)
    here("run", "claims.py", "--id", "r").expect(0)
    return here, Command(other, {"FLOWCKPT_STORE": str(start / ".flowckpt")})


def test_evidence_is_checked_where_the_run_was_started(claimed):
    _, other = claimed
    assert other("verify", "r", "--json").expect(0).document["stale"] == 0
    assert other("verify", "r", "--json", "--here").expect(10).document["stale"] == 1
    assert other("fork", "r", "--id", "f", "--here").expect(10)
    other("fork", "r", "--id", "f").expect(0)
    assert other("rollback", "r", "written", "--here").expect(10)
    other("rollback", "r", "written").expect(0)
    assert os.listdir(other.directory) == []


def test_a_typed_target_of_a_check_is_that_of_the_shell(claimed):
    here, other = claimed
    os.rename(here.directory / "claims.py", other.directory / "claims.py")
    other("verify", "r", "--target", "claims.py").expect(0)
    other("fork", "r", "--id", "f", "--target", "claims.py").expect(0)
    assert other("resume", "f", "--json").expect(0).document["status"] == "completed"


def test_a_fork_and_a_rollback_move_the_run_with_here(claimed):
    here, other = claimed
    (other.directory / "a.txt").touch()
    other("fork", "r", "--id", "f", "--from", "more", "--here").expect(0)
    other("rollback", "r", "written", "--here").expect(0)
    os.remove(here.directory / "a.txt")
    for run in ("f", "r"):
        assert here("resume", run, "--json").expect(0).document["steps"] == {"executed": 1, "restored": 1, "failed": 0}


def test_a_cancel_with_here_undoes_in_the_current_directory(started):
    _, other = started
    other("cancel", "r", "--here").expect(0)
    assert (other.directory / "undone").read_text() == str(other.directory)


def test_a_directory_that_was_removed_is_named(tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    script = f"cd {gone} && rmdir {gone} && exec {shlex.quote(sys.executable)} -m flowckpt list"
    ran = subprocess.run(
        ["sh", "-c", script], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": os.getcwd()}
    )
    assert (ran.returncode, ran.stdout) == (74, "")
    assert "the current directory no longer exists\nChange to a directory that exists: cd DIRECTORY" in ran.stderr
