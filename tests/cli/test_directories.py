"""A resume runs in the directory in which the run was started: its steps and its evidence see the same files."""

from __future__ import annotations

import os

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
    assert "relative paths" not in resumed.err
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
    assert "--here" in refused.err and "Resume with" not in refused.err
    (moved.directory / "ready").touch()
    moved("resume", "r", "--here", "--target", "files.py").expect(0)


def test_a_cancel_from_elsewhere_undoes_where_the_run_was_started(started):
    here, other = started
    other("cancel", "r").expect(0)
    assert (here.directory / "undone").read_text() == str(here.directory)
