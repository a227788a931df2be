"""Ctrl-C and SIGTERM in the middle of a fan-out: what has ended is saved, the rest stops, and a resume runs only the rest."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flowckpt import FileCheckpointStore
from flowckpt.core.system.blocking import blocking_allowed

PROGRAM = """
import asyncio, pathlib, sys, time
from flowckpt import FileCheckpointStore, WorkflowEngine, parallel, step, workflow
from flowckpt.execution.interrupts import RunInterrupted

kind, root = sys.argv[1], pathlib.Path(sys.argv[2])

def note(item):
    with (root / "done").open("a") as file:
        file.write(f"{item}\\n")
    return item

def is_stuck(item):
    return item >= 4 and not (root / "go").exists()

def threaded(item):
    while is_stuck(item):
        time.sleep(0.01)
    return note(item)

async def awaited(item):
    while is_stuck(item):
        await asyncio.sleep(0.01)
    return note(item)

def program(item):
    loop = f"while [ {item} -ge 4 ] && [ ! -e {root}/go ]; do sleep 0.05; done; echo {item} >> {root}/done"
    return step(f"c{item}").command(["sh", "-c", f": {root}; {loop}"]).checkpoint()

@workflow
def flow():
    if kind == "command":
        yield parallel(*[program(item) for item in range(8)]).checkpoint()
    else:
        yield step("m").map(threaded if kind == "sync" else awaited, range(8), concurrency=8).checkpoint()
    return "done"

engine = WorkflowEngine(FileCheckpointStore(root / "store"))
try:
    if len(sys.argv) > 3:
        result = engine.resume_sync(flow, workflow_id="run")
    else:
        result = engine.run_sync(flow, workflow_id="run")
except RunInterrupted as stop:
    print(stop.result.status, stop.result.is_saved)
    sys.exit(9)
print(result.status, result.steps.executed, result.steps.restored, result.error)
"""


def processes_about(root: Path) -> list[str]:
    found = []
    for each in Path("/proc").iterdir():
        if each.name.isdigit() and int(each.name) != os.getpid():
            try:
                line = (each / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if str(root) in line:
                found.append(line)
    return found


def saved_members(store: FileCheckpointStore) -> int:
    with blocking_allowed(True):
        latest = store.runs.load_latest("run")
    return 0 if latest is None else len(latest.step_results)


@pytest.mark.parametrize("kind", ["sync", "async", "command"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["int", "term"])
def test_a_signal_in_a_fan_out_keeps_what_ended_and_leaves_nothing_running(
    kind: str, number: signal.Signals, tmp_path: Path
) -> None:
    script, done, store = tmp_path / "program.py", tmp_path / "done", FileCheckpointStore(tmp_path / "store")
    script.write_text(PROGRAM)
    command = [sys.executable, str(script), kind, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        until = time.monotonic() + 120
        while saved_members(store) < 4:
            assert time.monotonic() < until
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(number)
        out, _ = process.communicate(timeout=120)
    assert (process.returncode, out) == (9, "suspended True\n")
    assert processes_about(tmp_path) == []
    (tmp_path / "go").touch()
    resumed = subprocess.run([*command, "again"], capture_output=True, text=True, timeout=120, check=True)
    assert resumed.stdout == "completed 5 4 None\n"
    assert sorted(done.read_text().split()) == [str(n) for n in range(8)]
