"""Zeros ahead of the last line of a segment: a quicker sync, and nothing that anybody reads."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys

import pytest

from flowckpt import FileCheckpointStore, WorkflowEngine, step, workflow
from flowckpt.blocking import blocking_allowed
from flowckpt.filesystem import PosixFileSystem
from flowckpt.stores.file.writer import MOST_RESERVED, RESERVE_FROM

LONG = 100


def text(number):
    return f"{number:04d}" * 100


@workflow("long")
def long_one(count=LONG):
    for number in range(count):
        yield step("text").python(text, number).checkpoint()
    return count


KILLED = """
import os, signal, sys
from flowckpt import FileCheckpointStore, WorkflowEngine, step, workflow

def text(number):
    if number == 60 and not os.path.exists("again"):
        open("again", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return f"{number:04d}" * 100

@workflow("killed")
def killed():
    for number in range(100):
        yield step("text").python(text, number).checkpoint()
    return 100

engine = WorkflowEngine(FileCheckpointStore("store"))
start = engine.run_sync if sys.argv[1] == "run" else engine.resume_sync
print(start(killed, workflow_id="run").unwrap())
"""


def segment(path, number=1):
    return path / "runs" / "run" / f"{number:08d}.jsonl"


def findings(path):
    with blocking_allowed(True):
        return {each.severity for each in FileCheckpointStore(path).runs.check("run")}


@pytest.fixture
def killed(tmp_path):
    """The directory of a store whose run was killed in a long segment."""
    (tmp_path / "killed.py").write_text(KILLED)
    done = subprocess.run([sys.executable, "killed.py", "run"], cwd=tmp_path, check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    return tmp_path


def test_a_run_that_ends_leaves_no_zeros(tmp_path):
    WorkflowEngine(FileCheckpointStore(tmp_path)).run_sync(long_one, workflow_id="run").unwrap()
    content = segment(tmp_path).read_bytes()
    assert len(content) > RESERVE_FROM
    assert content.endswith(b"}\n")


def test_a_killed_run_leaves_some_and_loses_nothing(killed):
    content = segment(killed / "store").read_bytes()
    zeros = len(content) - len(content.rstrip(b"\0"))
    assert 0 < zeros <= MOST_RESERVED
    assert content.rstrip(b"\0").count(b"\n") == 1 + 1 + 60  # the header, the start, and the steps
    assert findings(killed / "store") == {"ok"}
    again = subprocess.run(
        [sys.executable, "killed.py", "resume"], cwd=killed, check=True, capture_output=True, text=True, timeout=60
    )
    assert again.stdout == "100\n"
    assert findings(killed / "store") <= {"ok", "notice"}
    assert segment(killed / "store", 2).read_bytes().endswith(b"}\n")


@pytest.mark.parametrize("byte", [0x01, 0x0A, 0x20, 0x7B, 0x7D, 0xFF])
@pytest.mark.parametrize("place", [0, 1, 511, 5_000, -1])
def test_a_byte_that_turns_up_among_them_is_dropped_or_refused_and_never_a_record(killed, byte, place):
    path = segment(killed / "store")
    content = bytearray(path.read_bytes())
    end = len(bytes(content).rstrip(b"\0"))
    content[end + place if place >= 0 else place] = byte
    path.write_bytes(content)
    with blocking_allowed(True):
        store = FileCheckpointStore(killed / "store")
        found = {each.severity for each in store.runs.check("run")}
        assert found in ({"ok"}, {"ok", "notice"}, {"notice"}, {"corrupt"}, {"error"})
        if not found & {"corrupt", "error"}:
            latest = store.runs.latest("run", store.runs.image("run"), None)
            assert len(latest.step_results) == 60


def test_a_disk_that_takes_no_zeros_takes_the_lines(tmp_path):
    class Full(PosixFileSystem):
        refused = 0

        def write_at(self, file, data, offset):
            if not data.strip(b"\0"):
                self.refused += 1
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            super().write_at(file, data, offset)

    filesystem = Full()
    store = FileCheckpointStore(tmp_path, filesystem=filesystem)
    WorkflowEngine(store).run_sync(long_one, workflow_id="run").unwrap()
    assert filesystem.refused == 1  # and it is not asked again
    assert findings(tmp_path) == {"ok"}


def test_a_short_run_writes_none(tmp_path):
    class Watching(PosixFileSystem):
        zeros = 0

        def write_at(self, file, data, offset):
            self.zeros += not data.strip(b"\0")
            super().write_at(file, data, offset)

    filesystem = Watching()
    store = FileCheckpointStore(tmp_path, filesystem=filesystem)
    WorkflowEngine(store).run_sync(long_one, workflow_id="run", count=5).unwrap()
    assert filesystem.zeros == 0
