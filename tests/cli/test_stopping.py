"""A signal suspends a run: nothing is undone, `recover` resumes it, and Ctrl-C asks a person once whether to undo."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from tests.cli.test_terminal import Terminal

TRIP = """
import time
from flowckpt import parallel, step, workflow

def note(line):
    with open("log", "a") as file:
        file.write(line + "\\n")

def book(what):
    note(f"book {what}")
    return what

def unbook(what):
    note(f"unbook {what}")

def travel(seconds):
    note("travel")
    if seconds:
        time.sleep(seconds)
    note("arrived")

@workflow("trip")
def trip(seconds: float = 0.0):
    for what in ("hotel", "flight"):
        yield step(what).python(book, what).rollback(unbook).checkpoint()
    import os
    yield step("travel").python(travel, 30.0 if not os.path.exists("go") else 0.0).checkpoint()
    return "home"

@workflow("letter")
def letter():
    import os
    yield parallel(
        step("answer").wait("answer"),
        step("travel").python(travel, 30.0 if not os.path.exists("go") else 0.0),
    )
    return "home"

@workflow("plain")
def plain():
    import os
    yield step("travel").python(travel, 30.0 if not os.path.exists("go") else 0.0).checkpoint()
"""

SIGNALS = [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]


@pytest.fixture
def trip(flowckpt):
    (flowckpt.directory / "trip.py").write_text(TRIP)
    return flowckpt


def stopped(trip, number, target="trip"):
    running = trip.start("run", f"trip.py:{target}", "--id", "rome")
    trip.wait_for("travel")
    running.send_signal(number)
    out, err = running.communicate(timeout=120)
    return running.returncode, out, err


@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_a_signal_suspends_and_recover_resumes(trip, number, code):
    returned, out, err = stopped(trip, number)
    assert returned == code, err
    assert "suspended: trip rome" in out
    assert f"stopped by {number.name}; it is saved" in err and "Resume with: flowckpt resume rome" in err
    assert "Undo" not in err  # there is no terminal to answer at
    assert trip.log() == ["book hotel", "book flight", "travel"]
    assert trip("show", "rome", "--json").document["status"] == "suspended"
    (trip.directory / "go").touch()
    recovered = trip("recover").expect(0)
    assert "it was stopped, and can continue" in recovered.err and "completed" in recovered.err
    assert trip.log() == ["book hotel", "book flight", "travel", "travel", "arrived"]


def test_a_run_that_waits_beside_a_running_step_is_due_after_the_signal(trip):
    returned, out, err = stopped(trip, signal.SIGTERM, "letter")
    assert returned == 143, err
    assert "suspended: letter rome" in out
    (trip.directory / "go").touch()
    assert "it was stopped, and can continue" in trip("recover").expect(0).err
    assert trip.log() == ["travel", "travel", "arrived"]
    assert trip("recover").expect(0).err.strip().endswith("is due")  # now it only waits


def test_a_run_that_only_waits_is_not_due_after_the_signal(trip):
    (trip.directory / "go").touch()
    running = trip.start("run", "trip.py:letter", "--id", "rome", "--stay", "inf")
    trip.wait_for("arrived")
    for _ in range(2400):
        if trip("show", "rome", "--json").document["waits"]:
            break
        time.sleep(0.05)
    running.send_signal(signal.SIGTERM)
    running.communicate(timeout=120)
    assert running.returncode == 143
    assert trip("recover").expect(0).err.strip().endswith("is due")


def test_the_events_name_the_signal(trip):
    running = trip.start("run", "trip.py:trip", "--id", "rome", "--events")
    trip.wait_for("travel")
    running.terminate()
    out, _ = running.communicate(timeout=120)
    last = out.splitlines()[-1]
    assert '"WorkflowSuspended"' in last and '"cause": "SIGTERM"' in last and '"is_saved": true' in last


WORKERS = """
import multiprocessing, os, signal, time
from flowckpt import step, workflow

made = multiprocessing.get_context("fork")

def square(number):
    return number * number

def pool():
    with made.Pool(2) as workers:  # whose end sends SIGTERM to each
        return sum(workers.map(square, range(10)))

def tell_and_wait(ready):
    ready.set()
    time.sleep(60)

def ends():
    codes = [pool()]
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        ready = made.Event()
        worker = made.Process(target=tell_and_wait, args=(ready,))
        worker.start()
        ready.wait(60)
        os.kill(worker.pid, number)
        worker.join(60)
        codes.append(worker.exitcode)
    return codes

@workflow
def workers():
    return (yield step("ends").python(ends).checkpoint())

if __name__ == "__main__":
    print(ends())
"""


def test_signals_end_the_processes_that_a_step_forks_as_without_a_run(flowckpt):
    (flowckpt.directory / "workers.py").write_text(WORKERS)
    plain = subprocess.run([sys.executable, "workers.py"], cwd=flowckpt.directory, capture_output=True, text=True)
    out, err = flowckpt.start("run", "workers.py", "--json").communicate(timeout=120)
    assert json.loads(out)["output"] == json.loads(plain.stdout) == [285, -signal.SIGTERM, -signal.SIGHUP, 1]
    assert err.count("Traceback") == plain.stderr.count("Traceback") == 1, "that of Ctrl-C"
    assert "RunInterrupted" not in err


QUESTION = "Undo 'flight' and 1 other step, and cancel the run? [y/N]: "


def test_ctrl_c_asks_once_and_undoes_on_request(trip):
    terminal = Terminal(trip, "run", "trip.py:trip", "--id", "rome")
    trip.wait_for("travel")
    terminal.read_until("travel")
    terminal.type("\x03")
    terminal.read_until(QUESTION)
    assert "suspended: trip rome" in terminal.text.replace("\x1b[36m", "").replace("\x1b[0m", "")
    assert trip.log() == ["book hotel", "book flight", "travel"]
    terminal.type("y\n")
    assert terminal.end() == 130
    assert terminal.text.count("Undo ") == 1
    assert "cancelled: rome (it was suspended)" in terminal.text and "undone: flight, hotel" in terminal.text
    assert trip.log()[3:] == ["unbook flight", "unbook hotel"]
    assert trip("show", "rome", "--json").document["status"] == "cancelled"


@pytest.mark.parametrize("answer", ["\n", "n\n", "\x03", "\x04"])
def test_without_a_yes_the_run_stays_suspended(trip, answer):
    terminal = Terminal(trip, "run", "trip.py:trip", "--id", "rome")
    trip.wait_for("travel")
    terminal.read_until("travel")
    terminal.type("\x03")
    terminal.read_until(QUESTION)
    terminal.type(answer)
    assert terminal.end(again="\x03" if answer == "\x03" else "") == 130
    assert "Resume with: flowckpt resume rome" in terminal.text
    assert trip.log() == ["book hotel", "book flight", "travel"]
    assert trip("show", "rome", "--json").document["status"] == "suspended"


@pytest.mark.parametrize(
    ("target", "options"), [("plain", []), ("trip", ["--no-rollback"]), ("trip", ["--json"]), ("trip", ["--events"])]
)
def test_nothing_is_asked_if_there_is_nothing_to_undo_or_nobody_reads_prose(trip, target, options):
    terminal = Terminal(trip, "run", f"trip.py:{target}", "--id", "rome", *options)
    trip.wait_for("travel")
    terminal.read_until("travel")
    terminal.type("\x03")
    assert terminal.end() == 130
    assert "Undo " not in terminal.text


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
def test_a_terminal_that_closes_undoes_nothing(trip, tmp_path):
    """`tmux kill-session` closes the terminal of a shell, as a dropped connection does."""
    tmux = ["tmux", "-S", str(tmp_path / "socket"), "-f", "/dev/null"]
    line = f"{sys.executable} -m flowckpt run trip.py:trip --id rome"
    subprocess.run(
        [*tmux, "new-session", "-d", "-s", "trip", line], cwd=trip.directory, env=trip.environment, check=True
    )
    try:
        trip.wait_for("travel")
        subprocess.run([*tmux, "kill-session", "-t", "trip"], check=True)
        deadline = time.monotonic() + 120
        while trip("show", "rome", "--json").document["status"] == "running" and time.monotonic() < deadline:
            time.sleep(0.05)
        assert trip("show", "rome", "--json").document["status"] == "suspended"
    finally:
        subprocess.run([*tmux, "kill-server"], check=False, capture_output=True)
    assert trip.log() == ["book hotel", "book flight", "travel"]
    (trip.directory / "go").touch()
    trip("recover").expect(0)
    assert trip.log()[-1] == "arrived" and os.path.exists(trip.directory / "go")
