"""The engine killed, stopped or interrupted while its workers work; scripts and files as workers see them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from far_processes import gone, is_running

from flowckpt import FileCheckpointStore
from flowckpt.core.system.blocking import blocking_allowed

HERE = Path(__file__).parent
COUNT = 16
FLOWCKPT = [sys.executable, "-m", "flowckpt"]


def environment(directory: Path) -> dict[str, str]:
    return {**os.environ, "PROGRAM_LOG": str(directory / "log"), "PYTHONPATH": "", "NO_COLOR": "1"}


def started(directory: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        words, cwd=directory, env=environment(directory), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def lines(directory: Path) -> list[list[str]]:
    log = directory / "log"
    return [line.split() for line in log.read_text().splitlines()] if log.exists() else []


def wait_for(directory: Path, count: int) -> None:
    until = time.monotonic() + 120
    while len(lines(directory)) < count:
        assert time.monotonic() < until
        time.sleep(0.005)


async def saved(directory: Path) -> set[int]:
    with blocking_allowed(True):
        latest = await FileCheckpointStore(directory / ".flowckpt").load_latest("r")
    found = () if latest is None else latest.step_results
    return {int(each.path[9:-1]) for each in found if each.path != "squares"}


@pytest.mark.parametrize("after", [1, 5, 11])
async def test_the_engine_killed_in_a_map_leaves_no_worker_and_a_resume_runs_only_what_is_missing(after, tmp_path):
    store = str(tmp_path / ".flowckpt")
    program = [sys.executable, str(HERE / "program.py"), store, "r"]
    engine = started(tmp_path, *program, "start")
    wait_for(tmp_path, after)
    engine.kill()
    engine.communicate()
    workers = {int(pid) for _, pid in lines(tmp_path)}
    assert all(gone(pid) for pid in workers)
    before, held = len(lines(tmp_path)), await saved(tmp_path)
    ended = subprocess.run(
        [*program, "resume"], cwd=tmp_path, env=environment(tmp_path), text=True, capture_output=True, timeout=120
    )
    assert ended.stdout.strip() == str(sum(number * number for number in range(COUNT))), ended.stderr
    again = [int(number) for number, _ in lines(tmp_path)[before:]]
    assert sorted(again) == sorted(set(range(COUNT)) - held)


BUSY = """
import os
from flowckpt import step, workflow

def note():
    with open(os.environ["PROGRAM_LOG"], "a") as log:
        log.write(f"0 {os.getpid()}\\n")

def busy(number):
    note()
    return sum(range(10**12))  # C code, which holds the interpreter's lock for an hour

@workflow("squares")
def squares():
    yield step("squares").map(busy, [1, 2], concurrency=2).on("process").at_most_once()
"""


def test_a_killed_engine_leaves_no_worker_although_c_code_keeps_its_threads_from_running(tmp_path):
    (tmp_path / "busy.py").write_text(BUSY)
    engine = started(tmp_path, *FLOWCKPT, "run", "busy.py", "--id", "r")
    wait_for(tmp_path, 2)
    engine.kill()
    engine.communicate()
    assert all(gone(int(pid)) for _, pid in lines(tmp_path))
    resumed = subprocess.run(
        [*FLOWCKPT, "resume", "r"], cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, timeout=120
    )
    assert resumed.returncode == 15, resumed.stderr  # it is unknown whether the members had their effect
    assert len(lines(tmp_path)) == 2


def test_the_guard_of_a_worker_ends_with_it(tmp_path):
    (tmp_path / "quick.py").write_text(BUSY.replace("sum(range(10**12))", "number").replace(".at_most_once()", ""))
    marked = {**environment(tmp_path), "GUARDED": str(tmp_path)}
    subprocess.run(
        [*FLOWCKPT, "run", "quick.py"], cwd=tmp_path, env=marked, capture_output=True, timeout=120, check=True
    )
    until = time.monotonic() + 120
    while left := [each for each in Path("/proc").glob("[0-9]*/environ") if _names(each, str(tmp_path))]:
        assert time.monotonic() < until, left
        time.sleep(0.05)


def _names(environ: Path, text: str) -> bool:
    try:
        return f"GUARDED={text}".encode() in environ.read_bytes()
    except OSError:
        return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_a_signal_saves_and_stops_and_leaves_no_worker(number, tmp_path):
    engine = started(
        tmp_path, *FLOWCKPT, "run", f"{HERE / 'program.py'}:squares", "--id", "r", "--executor", "process:2"
    )
    wait_for(tmp_path, 6)
    began = time.monotonic()
    engine.send_signal(number)
    _, said = engine.communicate(timeout=120)
    assert time.monotonic() - began < 120
    assert engine.returncode == 128 + number, said
    assert all(gone(int(pid)) for _, pid in lines(tmp_path))
    shown = subprocess.run(
        [*FLOWCKPT, "resume", "r", "--json"], cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True
    )
    document = json.loads(shown.stdout)
    assert document["status"] == "completed", shown.stderr
    assert document["steps"]["restored"] > 0


def test_two_signals_stop_at_once_and_leave_no_worker(tmp_path):
    (tmp_path / "stubborn.py").write_text(
        "import os, time\n"
        "from flowckpt import step, workflow\n"
        "from flowckpt.execution.executors import processes\n"
        "processes.GRACE_SECONDS = 600\n"
        "def stay():\n"
        "    open(os.environ['PROGRAM_LOG'], 'a').write(f'0 {os.getpid()}\\n')\n"
        "    while True:\n"
        "        try: time.sleep(60)\n"
        "        except BaseException: pass\n"
        "@workflow('w')\n"
        "def w():\n"
        "    yield step('stay').python(stay).on('process')\n"
    )
    engine = started(tmp_path, *FLOWCKPT, "run", "stubborn.py:w", "--id", "r")
    wait_for(tmp_path, 1)
    engine.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert engine.poll() is None  # it gives the step its time to end
    engine.send_signal(signal.SIGINT)
    assert gone(int(lines(tmp_path)[0][1]))
    engine.communicate(timeout=120)


def test_a_worker_of_an_engine_that_stands_still_stays():
    """A stopped engine is not a dead one: its workers wait for it."""
    code = (
        "from flowckpt import ProcessExecutor; import os, signal\n"
        "e = ProcessExecutor(1); print(e.submit(os.getpid).result(), flush=True)\n"
        "input(); print(e.submit(abs, -3).result()); e.kill()\n"
    )
    engine = subprocess.Popen([sys.executable, "-c", code], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert engine.stdin is not None and engine.stdout is not None
    worker = int(engine.stdout.readline())
    engine.send_signal(signal.SIGSTOP)
    time.sleep(0.3)
    assert is_running(worker)
    engine.send_signal(signal.SIGCONT)
    out, _ = engine.communicate("\n", timeout=120)
    assert out == "3\n"
    assert gone(worker)


@pytest.mark.parametrize("how", ["script", "module", "command line"])
def test_functions_and_errors_of_a_script_are_found_in_the_worker(how, tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "my-program.py").write_text((HERE / "program.py").read_text())
    (package / "program.py").write_text(
        "from . import __name__ as package\n"
        + (HERE / "program.py").read_text().replace("from __future__ import annotations\n", "")
    )
    if how == "command line":
        words = [*FLOWCKPT, "run", "package/my-program.py:refused", "--json"]
        expected, name = None, "my-program.RefusedError"
    else:
        where = ["-m", "package.program"] if how == "module" else [str(package / "my-program.py")]
        words = [sys.executable, *where, str(tmp_path / "store"), "r", "refused"]
        name = "package.program.RefusedError" if how == "module" else "my-program.RefusedError"
        expected = f"[True, '{name}', 2]"
    ended = subprocess.run(words, cwd=tmp_path, env=environment(tmp_path), text=True, capture_output=True, timeout=120)
    if expected is None:
        assert json.loads(ended.stdout)["output"] == [True, name, 2], ended.stderr
    else:
        assert ended.stdout.strip() == expected, ended.stderr


def test_a_script_without_a_guard_is_told_what_to_do(tmp_path):
    source = (HERE / "program.py").read_text().replace('if __name__ == "__main__":', "if True:")
    (tmp_path / "bare.py").write_text(source.replace(".output)", ".error)"))
    ended = subprocess.run(
        [sys.executable, "bare.py", "store", "r", "start"],
        cwd=tmp_path,
        env=environment(tmp_path),
        text=True,
        capture_output=True,
        timeout=120,
    )
    assert "NotSendableError" in ended.stdout
    assert not lines(tmp_path)


def test_prints_of_workers_stay_out_of_the_document(tmp_path):
    (tmp_path / "loud.py").write_text(
        "from flowckpt import step, workflow\n"
        "def shout(): print('HERE'); return 1\n"
        "@workflow('w')\n"
        "def w(): return (yield step('shout').python(shout))\n"
    )
    ended = subprocess.run(
        [*FLOWCKPT, "run", "loud.py", "--json", "--executor", "process:1"],
        cwd=tmp_path,
        env=environment(tmp_path),
        text=True,
        capture_output=True,
        timeout=120,
    )
    assert json.loads(ended.stdout)["output"] == 1
    assert "HERE" in ended.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--executor", "proces"], "describes no executor"),
        (["--executor", "gpu=proces"], "describes no executor"),
        (["--executor", "process:2", "--executor", "thread"], "given twice"),
        (["--executor", "1x=process"], "cannot be the name"),
        (["--executor", "engine=process"], "part of the engine"),
    ],
)
def test_an_executor_that_is_none_is_a_usage_error_and_nothing_runs(options, said, tmp_path):
    ended = subprocess.run(
        [*FLOWCKPT, "run", f"{HERE / 'program.py'}:squares", *options],
        cwd=tmp_path,
        env=environment(tmp_path),
        text=True,
        capture_output=True,
        timeout=120,
    )
    assert (ended.returncode, said in ended.stderr) == (2, True), ended.stderr
    assert not (tmp_path / ".flowckpt").exists()


def test_an_executor_that_only_a_step_names_is_found_missing_there_with_exit_code_2(tmp_path):
    (tmp_path / "gpu.py").write_text(
        "from flowckpt import step, workflow\n"
        "@workflow('w')\n"
        "def w(): return (yield step('train').python(abs, -1).on('gpu'))\n"
    )
    run = [*FLOWCKPT, "run", "gpu.py", "--id", "r"]
    ended = subprocess.run(run, cwd=tmp_path, env=environment(tmp_path), text=True, capture_output=True, timeout=120)
    assert ended.returncode == 2
    assert "--executor gpu=" in ended.stderr
    again = [*FLOWCKPT, "resume", "r", "--executor", "gpu=process", "--json"]
    ended = subprocess.run(again, cwd=tmp_path, env=environment(tmp_path), text=True, capture_output=True, timeout=120)
    assert json.loads(ended.stdout)["output"] == 1


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ("engine", "process:1"),
        ("process:1", "engine"),
        ("process:1", "thread"),
        ("dask:local:2", ""),  # what is on this machine alone is taken from the record
    ],
)
def test_a_step_whose_engine_was_killed_goes_on_from_its_state_on_another_executor(first, then, tmp_path):
    if "dask" in first + then:
        pytest.importorskip("distributed")
    engine = started(tmp_path, *FLOWCKPT, "run", f"{HERE / 'page_by_page.py'}", "--id", "r", "--executor", first)
    wait_for(tmp_path, 5)
    engine.kill()
    engine.communicate()
    assert all(gone(int(pid)) for _, pid in lines(tmp_path))
    before = len(lines(tmp_path))
    chosen = ["--executor", then] if then else []
    again = [*FLOWCKPT, "resume", "r", "--json", *chosen]
    ended = subprocess.run(again, cwd=tmp_path, env=environment(tmp_path), text=True, capture_output=True, timeout=120)
    began, last, attempt = json.loads(ended.stdout)["output"]
    assert (last, attempt) == (30, 2), ended.stderr
    assert began in (before - 1, before)  # of the last page, either the state was saved or it is done again
    assert [int(page) for page, _ in lines(tmp_path)[before:]] == list(range(began, 30))
