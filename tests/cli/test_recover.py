"""`flowckpt recover`: what died is resumed by itself, once and by one, and what cannot be is told and left."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter

import attrs
import psycopg
import pytest

from flowckpt.stores import open_store
from tests.forked import Started

PROGRAM = """
import os, time
from flowckpt import Secret, step, workflow

def note(line):
    with open("log", "a") as file:
        file.write(line + "\\n")

def first(run):
    note(f"first {run}")
    return run

def second(run):
    if not os.path.exists("go"):
        os.kill(os.getpid(), 9)
    note(f"second {run}")
    print(f"hello from {run}")
    return run

@workflow
def dying(run: str):
    yield step("first").python(first, run).checkpoint()
    yield step("second").python(second, run).checkpoint()
    return run

@workflow
def other(run: str):
    yield step("second").python(second, run).checkpoint()

def fail():
    raise ValueError("it is no use")

@workflow
def failing():
    yield step("die").python(second, "failing").checkpoint()
    yield step("fail").python(fail).checkpoint()

@workflow
def secretive(token: Secret[str]):
    yield step("second").python(second, "secretive").checkpoint()
    return len(token.reveal())

def undo(run):
    note(f"undo {run}")

def long(run):
    note(f"long {run}")
    if os.path.exists("quick"):
        return run
    time.sleep(60)

@workflow
def lasting(run: str):
    yield step("first").python(first, run).rollback(undo).checkpoint()
    yield step("second").python(second, run).checkpoint()
    yield step("long").python(long, run).checkpoint()

@workflow
def napping(seconds: float):
    yield step("first").python(first, "nap").checkpoint()
    yield step("nap").sleep(seconds)
    note("woke")

@workflow
def asking():
    answer = yield step("ask").wait("answer")
    note(f"answer {answer}")
"""

CRASH_MANY = """
import os, sys
from flowckpt import WorkflowEngine, open_store
from dying import dying

for number in range(int(sys.argv[2])):
    pid = os.fork()
    if pid == 0:
        run = f"r{number:02}"
        WorkflowEngine(open_store(sys.argv[1])).run_sync(dying, workflow_id=run, run=run)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert os.WTERMSIG(status) == 9
"""


@pytest.fixture
def crashing(flowckpt):
    (flowckpt.directory / "dying.py").write_text(PROGRAM)
    return flowckpt


def crash(command, workflow="dying", *more, run=None):
    run = run or workflow
    arguments = ["-i", f"run={run}"] if workflow in ("dying", "other", "lasting") else []
    command("run", f"dying.py:{workflow}", "--id", run, *arguments, *more).expect(-signal.SIGKILL)


def allow(command):
    (command.directory / "go").touch()


def outcomes(ran):
    return {run["workflow_id"]: run["outcome"] for run in ran.document["runs"]}


def test_a_run_whose_process_was_killed_goes_on_from_its_last_checkpoint(crashing):
    crash(crashing)
    allow(crashing)
    ran = crashing("recover", "--json").expect(0)
    assert ran.document["counts"] == {"completed": 1}
    (run,) = ran.document["runs"]
    assert (run["workflow_name"], run["why"], run["attempt"], run["exit_code"]) == ("dying", "crashed", 2, 0)
    assert crashing.log() == ["first dying", "second dying"]
    again = crashing("recover").expect(0)
    assert "no run" in again.err and again.out == ""


def test_it_works_from_another_directory_and_with_a_store_that_only_the_options_name(crashing, tmp_path):
    crash(crashing, "dying", "--store", "sqlite:runs.db")
    allow(crashing)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    process = subprocess.run(
        [sys.executable, "-m", "flowckpt", "recover", "--store", "sqlite:../runs.db", "--show-output"],
        cwd=elsewhere,
        env=crashing.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    assert "dying | hello from dying" in process.stderr
    assert crashing.log() == ["first dying", "second dying"]


def test_what_failed_or_cannot_go_on_is_told_and_makes_the_exit_code_1(crashing):
    crash(crashing, "failing")
    allow(crashing)
    ran = crashing("recover", "--json").expect(1)
    assert outcomes(ran) == {"failing": "failed"}
    assert "it is no use" in ran.err
    assert crashing("recover", "--json").expect(0).document == {
        "runs": [],
        "counts": {},
    }  # a failure waits for a person


def test_a_run_whose_secret_nobody_gives_is_left_until_somebody_does(crashing):
    token = {"FLOWCKPT_SECRET_TOKEN": "tell-no-one"}
    crashing("run", "dying.py:secretive", "--id", "s", **token).expect(-signal.SIGKILL)
    allow(crashing)
    left = crashing("recover", "--json").expect(1)
    assert outcomes(left) == {"s": "left"} and "FLOWCKPT_SECRET_TOKEN" in left.document["runs"][0]["detail"]
    assert outcomes(crashing("recover", "--json", **token).expect(0)) == {"s": "completed"}


def test_edited_code_leaves_the_run_as_it_is(crashing):
    crash(crashing)
    allow(crashing)
    program = crashing.directory / "dying.py"
    program.write_text(program.read_text().replace('note(f"first {run}")', 'note(f"first, {run}")'))
    ran = crashing("recover", "--json").expect(1)
    assert (outcomes(ran), ran.document["runs"][0]["exit_code"]) == ({"dying": "left"}, 10)
    assert crashing("list", "--json").document[0]["status"] == "crashed"


def test_a_program_that_is_not_here_leaves_the_run_as_it_is(crashing):
    crash(crashing)
    (crashing.directory / "dying.py").rename(crashing.directory / "moved.py")
    ran = crashing("recover", "--json").expect(1)
    assert outcomes(ran) == {"dying": "left"} and "not on this machine" in ran.document["runs"][0]["detail"]


def test_a_recoverer_elsewhere_names_the_directory_of_the_run(crashing, tmp_path):
    crash(crashing)
    allow(crashing)
    (tmp_path / "copy").mkdir()
    store = str(crashing.directory / ".flowckpt")
    ran = attrs.evolve(crashing, directory=tmp_path / "copy")("recover", "--store", store).expect(0)
    assert f"resuming from attempt 1 in {crashing.directory}\n" in ran.err


def test_only_runs_of_the_named_workflows_are_resumed(crashing):
    crash(crashing)
    crash(crashing, "other")
    allow(crashing)
    assert outcomes(crashing("recover", "--workflow", "other", "--json").expect(0)) == {"other": "completed"}
    assert outcomes(crashing("recover", "--json").expect(0)) == {"dying": "completed"}


def test_a_run_that_dies_again_is_told_with_the_signal_that_killed_it(crashing):
    crash(crashing)
    ran = crashing("recover", "--json").expect(1)
    assert outcomes(ran) == {"dying": "died"} and "signal 9" in ran.document["runs"][0]["detail"]


def test_a_sleep_that_is_over_and_a_signal_that_was_sent_end_a_suspension(crashing):
    crashing("run", "dying.py:napping", "--id", "nap", "-i", "seconds=3", "--stay", "0").expect(3)
    crashing("run", "dying.py:napping", "--id", "longer", "-i", "seconds=9999", "--stay", "0").expect(3)
    crashing("run", "dying.py:asking", "--id", "ask", "--stay", "0").expect(3)
    time.sleep(3)
    assert outcomes(crashing("recover", "--json").expect(0)) == {"nap": "completed"}
    crashing("signal", "ask", "answer", "--data", '"yes"').expect(0)
    ran = crashing("recover", "--json").expect(0)
    assert outcomes(ran) == {"ask": "completed"} and ran.document["runs"][0]["why"] == "signalled"
    assert crashing.log() == ["first nap", "first nap", "woke", "answer yes"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_watcher_that_is_stopped_saves_its_runs_and_the_next_one_goes_on(crashing, number, code):
    crash(crashing, "lasting")
    allow(crashing)
    watcher = crashing.start("recover", "--watch", "--every", "0.1", "--json")
    crashing.wait_for("long lasting")
    watcher.send_signal(number)
    out, err = watcher.communicate(timeout=120)
    assert watcher.returncode == code, err
    assert json.loads(out)["counts"] == {"stopped": 1}
    assert crashing("list", "--json").document[0]["status"] == "suspended"
    (crashing.directory / "quick").touch()
    ran = crashing("recover", "--json").expect(0)
    assert ran.document["runs"][0]["why"] == "stopped"
    assert crashing.log() == ["first lasting", "second lasting", "long lasting", "long lasting"]  # and nothing undone


def test_a_watcher_finds_runs_that_crash_while_it_watches(crashing):
    watcher = crashing.start("recover", "--watch", "--every", "0.1")
    try:
        allow(crashing)
        owner = crashing.start("run", "dying.py:lasting", "--id", "lasting", "-i", "run=lasting")
        crashing.wait_for("long lasting")
        (crashing.directory / "quick").touch()
        owner.kill()
        owner.communicate()
        wait_until(lambda: crashing("list", "--json").document[0]["status"] == "completed")
        assert crashing.log() == ["first lasting", "second lasting", "long lasting", "long lasting"]
    finally:
        watcher.terminate()
        watcher.communicate(timeout=120)


def test_a_watcher_does_not_resume_a_run_that_keeps_dying_in_a_loop(crashing):
    crash(crashing)
    told = crashing.directory / "told"
    with told.open("w") as file:
        watcher = crashing.start("recover", "--watch", "--every", "0.05", stderr=file)
    wait_until(lambda: "died" in told.read_text())
    time.sleep(1.5)  # thirty looks more
    watcher.terminate()
    watcher.communicate(timeout=120)
    err = told.read_text()
    assert len(re.findall("resuming", err)) == 1, err
    lines = err.splitlines()
    assert re.fullmatch(r"\d\d:\d\d:\d\d flowckpt: watching .*: all runs, every 0.05 s, at most 1 at a time", lines[0])
    assert all(re.match(r"\d\d:\d\d:\d\d ", line) for line in lines if "resuming" in line)


@pytest.mark.parametrize(
    "kind", ["file", "sqlite", *(pytest.param(each, marks=pytest.mark.soak) for each in ("postgres", "objects"))]
)
def test_recoverers_share_the_work_none_is_done_twice_and_hardly_a_process_is_started_in_vain(
    crashing, kind, request, is_soak
):
    count, recoverers = (20, 4) if is_soak else (4, 3)
    spec = {
        "file": "file:.flowckpt",
        "sqlite": "sqlite:runs.db",
        "objects": f"objects+file://{crashing.directory / 'objects'}?allow_unsafe=true",
    }.get(kind)
    if spec is None:
        postgres = request.getfixturevalue("postgres")
        spec = f"{postgres.url(request.getfixturevalue('postgres_database'))}?allow_unsafe=true"
    (crashing.directory / "crash_many.py").write_text(CRASH_MANY)
    assert Started(["crash_many.py", spec, count], cwd=crashing.directory, env=crashing.environment).wait() == 0
    assert len(crashing.log()) == count
    allow(crashing)
    wait_until_listed(crashing, spec, count)
    started = [crashing.start("recover", "--json", "--store", spec) for _ in range(recoverers)]
    told = [process.communicate(timeout=120) for process in started]
    assert [process.returncode for process in started] == [0] * recoverers, told
    runs = [run for out, _ in told for run in json.loads(out)["runs"]]
    names = [f"r{number:02}" for number in range(count)]
    assert sorted(run["workflow_id"] for run in runs) == names
    assert {run["outcome"] for run in runs} == {"completed"}
    assert {run["attempt"] for run in runs} == {2}, "to keep a run is not an attempt of it"
    assert Counter(crashing.log()) == Counter(f"{step} {run}" for step in ("first", "second") for run in names)
    processes = sum(err.count("resuming from attempt") for _, err in told)
    assert processes <= count + 2, "some milliseconds are left in which two recoverers can meet"


HELD_UP = """
import os, pathlib, time
pathlib.Path(f"started.{os.getpid()}").touch()
while os.path.exists("hold"):
    time.sleep(0.02)
"""


@pytest.fixture
def held_up(crashing):
    """A crashed run whose program takes as long to import as a file is there."""
    program = crashing.directory / "dying.py"
    program.write_text(HELD_UP + program.read_text().replace('    print(f"hello from {run}")\n', ""))
    crash(crashing)
    for file in crashing.directory.glob("started.*"):
        file.unlink()
    allow(crashing)
    (crashing.directory / "hold").touch()
    return crashing


def processes_of(command, count=1):
    """Wait until so many processes have begun to import the program; return their files."""
    for _ in range(6000):
        if len(found := sorted(command.directory.glob("started.*"))) >= count:
            return found
        time.sleep(0.02)
    raise AssertionError("no process has begun")


def test_a_run_whose_process_is_starting_is_left_to_it(held_up):
    recoverer = held_up.start("recover", "--json")
    started = processes_of(held_up)
    assert held_up("list", "--json").document[0]["status"] == "running"
    assert held_up("recover", "--json").expect(0).document["runs"] == []
    assert processes_of(held_up) == started, "nobody else has started one"
    (held_up.directory / "hold").unlink()
    out, err = recoverer.communicate(timeout=120)
    (run,) = json.loads(out)["runs"]
    assert (run["outcome"], run["attempt"]) == ("completed", 2), err
    assert held_up.log() == ["first dying", "second dying"]


def test_a_run_whose_process_dies_while_it_starts_is_free_again(held_up):
    recoverer = held_up.start("recover", "--json")
    (started,) = processes_of(held_up)
    os.kill(int(started.suffix[1:]), signal.SIGKILL)
    out, err = recoverer.communicate(timeout=120)
    assert [run["outcome"] for run in json.loads(out)["runs"]] == ["died"], err
    (held_up.directory / "hold").unlink()
    assert outcomes(held_up("recover", "--json").expect(0)) == {"dying": "completed"}


async def take_over(store, run):
    lease = await store.acquire(run, take_over=True)
    moved = {"attempt": lease.attempt, "sequence": lease.last_sequence + 1, "checkpoint_id": "taken over"}
    await store.save(run, attrs.evolve(lease.latest, **moved))


def test_a_run_that_somebody_else_gets_while_its_process_starts_is_said_not_to_be_resumed_here(held_up):
    recoverer = held_up.start("recover")
    processes_of(held_up)
    asyncio.run(take_over(open_store(f"file:{held_up.directory}/.flowckpt"), "dying"))
    (held_up.directory / "hold").unlink()
    _, err = recoverer.communicate(timeout=120)
    assert err.splitlines()[:2] == [
        "dying (dying): its process is gone; resuming from attempt 1",
        "dying (dying): another process has resumed it; not resumed here",
    ]
    assert recoverer.returncode == 0
    assert held_up.log() == ["first dying"]


def test_a_process_whose_recoverer_died_takes_the_run_all_the_same(held_up):
    recoverer = held_up.start("recover")
    (started,) = processes_of(held_up)
    recoverer.kill()
    recoverer.communicate()
    assert held_up("list", "--json").document[0]["status"] == "crashed"
    (held_up.directory / "hold").unlink()
    held_up.wait_for("second dying")
    for _ in range(6000):
        if (found := held_up("list", "--json").document[0])["status"] == "completed":
            break
        time.sleep(0.02)
    assert found["status"] == "completed"


def wait_until_listed(command, spec, count):
    """Wait until the leases of the dead have run out."""
    for _ in range(1200):
        if len(command("list", "--status", "crashed", "--json", "--store", spec).document) == count:
            return
        time.sleep(0.1)
    raise AssertionError("not all of them are known to be dead")


def test_a_resume_that_comes_too_late_changes_nothing(crashing):
    crash(crashing)
    allow(crashing)
    crashing("resume", "dying").expect(0)
    late = crashing("resume", "dying", "--if-attempt", "1").expect(75)
    assert "attempt 2" in late.err
    assert crashing.log() == ["first dying", "second dying"]


def test_once_and_watch_exclude_each_other(crashing):
    assert "exclude" in crashing("recover", "--once", "--watch").expect(2).err


def test_an_interval_needs_watching(crashing):
    assert "--every needs --watch" in crashing("recover", "--every", "3").expect(2).err


def test_a_run_whose_executor_has_an_address_is_left_until_it_is_given_again_or_set(crashing):
    """An address in a record is never used: the process that recovers says where the steps run."""
    crash(crashing, "dying", "--executor", "gpu=dask://127.0.0.1:9")
    said = crashing("recover").expect(1).err
    assert "left as it is" in said
    assert "executor 'gpu'" in said
    (crashing.directory / "go").touch()
    crashing("recover", "--executor", "gpu").expect(2)
    crashing("recover", "--executor", "gpu=thread").expect(0)
    assert crashing("show", "dying", "--json").expect(0).document["status"] == "completed"


def test_a_watcher_on_postgresql_hears_of_a_signal_and_does_not_wait_for_its_next_look(crashing, request):
    postgres = request.getfixturevalue("postgres")
    spec = f"{postgres.url(request.getfixturevalue('postgres_database'))}?allow_unsafe=true"
    crashing("run", "dying.py:asking", "--id", "a", "--store", spec).expect(3)
    watcher = crashing.start("recover", "--watch", "--every", "3600", "--store", spec)
    try:
        with psycopg.connect(postgres.dsn(request.getfixturevalue("postgres_database")), autocommit=True) as asks:
            while not asks.execute(
                "SELECT 1 FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND datname = current_database()"
            ).fetchall():
                time.sleep(0.1)
        time.sleep(1.0)  # it has looked since: nothing is due
        crashing("signal", "a", "answer", "--data", "4", "--store", spec).expect(0)
        for _ in range(1200):
            if crashing.log():
                break
            time.sleep(0.1)
    finally:
        watcher.send_signal(signal.SIGTERM)
        watcher.communicate(timeout=120)
    assert crashing.log() == ["answer 4"]


@pytest.mark.parametrize("kind", ["file", "sqlite"])
@pytest.mark.parametrize("watches", [False, True], ids=["once", "watch"])
def test_what_is_damaged_of_one_run_keeps_no_other_from_being_resumed(crashing, kind, watches):
    spec = {"file": "file:store", "sqlite": "sqlite:runs.db"}[kind]
    for run in ("a1", "a2", "a3"):
        crashing("run", "dying.py:asking", "--id", run, "--store", spec).expect(3)
        crashing("signal", run, "answer", "--data", f'"{run}"', "--store", spec).expect(0)
    if kind == "file":
        for message in (crashing.directory / "store/runs/a1/signals").iterdir():
            message.write_text("{}")
    else:
        with sqlite3.connect(crashing.directory / "runs.db") as database:
            database.execute(
                "UPDATE signals SET document = '{}' WHERE run = (SELECT run FROM runs WHERE workflow_id='a1')"
            )
            database.execute("UPDATE runs SET metadata = '{\"target\": 5}' WHERE workflow_id = 'a3'")
        database.close()
    if watches:
        told = crashing.directory / "told"
        with told.open("w") as file:
            watcher = crashing.start("recover", "--watch", "--every", "0.2", "--store", spec, stderr=file)
        for _ in range(1200):
            if "answer a2" in crashing.log() and "a1 (asking)" in told.read_text():
                break
            time.sleep(0.1)
        time.sleep(0.5)
        assert watcher.poll() is None, "it continues looking"
        watcher.send_signal(signal.SIGTERM)
        watcher.communicate(timeout=120)
        said = told.read_text()
    else:
        said = crashing("recover", "--store", spec).expect(1).err
    assert "answer a2" in crashing.log()
    assert "answer a1" not in crashing.log()
    assert re.search(r"a1 \(asking\): left as it is: .*corrupt", said), said
    assert "Traceback" not in said
    assert "a1" in crashing("store", "check", "--store", spec).expect(11).out


TALKATIVE = """
import os, subprocess, sys, time
from pathlib import Path
from flowckpt import step, workflow

def wait_for(name):
    Path(f"before {name}").touch()
    while not os.path.exists(name):
        time.sleep(0.01)

def die():
    if not os.path.exists("go"):
        os.kill(os.getpid(), 9)

def talk():
    print("one\\r\\ntwo")
    wait_for("heard")
    for number in range(20_000):
        print(number)
        print("oops", number, file=sys.stderr)
    subprocess.run(["sh", "-c", "echo of a program; echo of its errors >&2"], check=True)
    return "said"

def leave_one_behind():
    process = subprocess.Popen(["sleep", "60"])
    Path("left").write_text(str(process.pid))
    print("the end")

@workflow
def talking():
    yield step("die").python(die).checkpoint()
    return (yield step("talk").python(talk).checkpoint())

@workflow
def leaving():
    yield step("die").python(die).checkpoint()
    yield step("leave").python(leave_one_behind).checkpoint()
"""


@pytest.fixture
def talkative(flowckpt):
    """Runs that crashed, and continue to print."""
    (flowckpt.directory / "talkative.py").write_text(TALKATIVE)
    for name in ("talking", "leaving"):
        flowckpt("run", f"talkative.py:{name}", "--id", name).expect(-signal.SIGKILL)
    allow(flowckpt)
    return flowckpt


def wait_until(holds):
    for _ in range(12_000):
        if holds():
            return
        time.sleep(0.01)
    raise AssertionError("it has not come to that")


@pytest.mark.parametrize("shows", [True, False], ids=["shown", "unshown"])
def test_a_run_whose_recoverer_is_killed_prints_on_and_ends_as_if_nothing_had_been(talkative, shows):
    options = ["--show-output"] if shows else []
    recoverer = talkative.start("recover", "--workflow", "talking", *options)
    wait_until((talkative.directory / "before heard").exists)
    recoverer.send_signal(signal.SIGKILL)
    recoverer.communicate(timeout=120)
    (talkative.directory / "heard").touch()

    def status():
        return talkative("show", "talking", "--json").document["status"]

    wait_until(lambda: status() not in ("running", "crashed"))
    shown = talkative("show", "talking", "--json").document
    assert (shown["status"], shown["output"]) == ("completed", "said")


def test_what_a_run_prints_is_shown_line_by_line_while_it_runs(talkative):
    recoverer = talkative.start("recover", "--workflow", "talking", "--show-output", "--jobs", "2")
    heard = []
    while "two" not in "".join(heard[-1:]):
        heard.append(recoverer.stderr.readline())
        assert heard[-1], heard
    assert heard[-2:] == ["talking | one\n", "talking | two\n"], "while its step waits"
    (talkative.directory / "heard").touch()
    _, rest = recoverer.communicate(timeout=120)
    assert recoverer.returncode == 0
    lines = [line.removeprefix("talking | ") for line in rest.splitlines() if line.startswith("talking | ")]
    assert [line for line in lines if line.isdigit()] == [str(number) for number in range(20_000)]
    assert [line for line in lines if line.startswith("oops")] == [f"oops {number}" for number in range(20_000)]
    assert lines.index("of a program") < lines.index("of its errors")


def test_a_program_that_a_run_leaves_behind_keeps_no_recoverer_waiting(talkative):
    began = time.monotonic()
    try:
        ran = talkative("recover", "--workflow", "leaving", "--show-output", "--json").expect(0)
        assert time.monotonic() - began < 30
    finally:
        os.kill(int((talkative.directory / "left").read_text()), signal.SIGKILL)
    assert outcomes(ran) == {"leaving": "completed"}
    assert "leaving | the end" in ran.err
