"""Commands: real programs, and nothing of them left behind, whatever ends them."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
import tracemalloc
from pathlib import Path

import pytest

from flowckpt import CommandOutput, step
from flowckpt.core import codec
from flowckpt.errors import CommandFailedError, StepDefinitionError, StepTimeoutError
from flowckpt.execution import command_process
from flowckpt.execution.command import check_exit, run_command
from flowckpt.execution.command_process import MAX_LINE, LineSplitter, OutputCapture
from flowckpt.execution.interrupts import Interrupts, RunInterrupted
from tests.late import Late

TREE = "sleep 1000 & echo $!; echo $$; sh -c 'sleep 1000 & echo $!; echo $$; echo ready; wait' & wait"
"""A shell, another one in it, and two programs: each tells its id."""

DEAF = f"trap '' TERM; {TREE}"


def action_of(argv, **given):
    return step("run").command(argv, **given).action


async def ran(argv, *, timeout=None, on_line=None, interrupts=None, **given):
    return await run_command(
        action_of(argv, **given),
        path="run",
        timeout_seconds=timeout,
        interrupts=interrupts or Interrupts(),
        on_line=on_line,
    )


def shell(text, **given):
    return ran(["sh", "-c", text], **given)


def state_of(pid):
    """The state of a process, one letter; empty where it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return stat[stat.rindex(")") + 2]


def lives(pid):
    return state_of(pid) not in ("", "Z", "X")


def children():
    own = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            if int(stat[stat.rindex(")") + 2 :].split()[1]) == os.getpid():
                own.append((entry.name, stat))
    return own


def open_files():
    """The open files, without the sockets: a cluster of other tests may open and close some of them at any moment."""
    links = [os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")]
    return sorted(link for link in links if "socket:" not in link)


def our_threads():
    return {thread for thread in threading.enumerate() if thread.name.startswith(("flowckpt", "asyncio"))}


@pytest.fixture(scope="module")
def nothing_is_forgotten():
    """Files that tests of other modules have forgotten are closed, so that they are not while these count theirs."""
    gc.collect()  # once: among thousands of tests it takes 0.2 s


@pytest.fixture(autouse=True)
def nothing_is_left(nothing_is_forgotten):
    """No test here leaves a process, a file or a thread behind; those of earlier tests may end meanwhile."""
    processes, files, threads = {pid for pid, _ in children()}, len(open_files()), our_threads()
    yield
    for thread in threading.enumerate():
        if thread.name == "flowckpt-command":
            thread.join(120)
    assert not {pid for pid, _ in children()} - processes
    assert len(open_files()) <= files
    assert not our_threads() - threads


@pytest.fixture
def short_grace(monkeypatch):
    monkeypatch.setattr(command_process, "GRACE_SECONDS", 0.3)


class Watch:
    """Takes lines, and waits for one."""

    def __init__(self, until="ready"):
        self.lines = []
        self.until = until
        self.seen = asyncio.Event()

    def __call__(self, stream, line):
        self.lines.append((stream, line))
        if line == self.until:
            self.seen.set()

    @property
    def pids(self):
        return [int(line) for _, line in self.lines if line.isdigit()]


# --- how it ends -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (["true"], 0),
        (["false"], 1),
        (["sh", "-c", "exit 77"], 77),
        (["sh", "-c", "exit 255"], 255),
        (["sh", "-c", "kill -KILL $$"], -9),
        (["sh", "-c", "kill -TERM $$"], -15),
        (["sh", "-c", "kill -PIPE $$"], -13),
        ((sys.executable, "-c", "import os; os.abort()"), -6),
    ],
)
async def test_a_program_returns_a_code_or_the_signal_that_killed_it(argv, code):
    assert (await ran(argv)).exit_code == code


async def test_what_it_writes_is_kept_as_it_is():
    output = await shell(r"printf 'a\r\nb\n\n'; printf 'ärger \377\001' >&2; exit 3")
    assert output == CommandOutput(3, "a\r\nb\n\n", "ärger \\xff\x01")


async def test_an_output_goes_through_the_record_and_comes_back():
    output = await shell(r"printf 'a\r\nä \377 \0 \033[1m'; exit 3", max_output=10)
    assert output.stdout_truncated
    for each in (output, CommandOutput(-9), CommandOutput(0, "\x00\ud7ff\u2028", "…")):
        tree = codec.encode(each, CommandOutput)
        found = codec.decode(tree, CommandOutput)
        assert found == each
        assert type(found) is CommandOutput


async def test_arguments_reach_the_program_as_they_are(tmp_path):
    given = ["--", "-x", "--help", "", "a b", "*", "$HOME", "ä\n", "'", tmp_path / "p"]
    output = await ran(["printf", "%s|", *given])
    assert output.stdout == "".join(f"{each}|" for each in given)


async def test_the_directory_and_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("GIVEN", "old")
    monkeypatch.setenv("TAKEN", "there")
    monkeypatch.setenv("KEPT", "kept")
    output = await shell(
        'pwd; echo "$GIVEN $KEPT ${TAKEN-gone} $NEW"',
        cwd=tmp_path,
        env={"GIVEN": "new", "TAKEN": None, "NEW": "ä=1", "NEVER_THERE": None},
    )
    assert output.stdout == f"{tmp_path}\nnew kept gone ä=1\n"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "inner").mkdir()
    assert (await ran(["pwd"], cwd="inner")).stdout == f"{tmp_path}/inner\n"


async def test_the_path_that_is_given_is_the_one_that_is_searched(tmp_path):
    program = tmp_path / "tell-me"
    program.write_text("#!/bin/sh\necho told\n")
    program.chmod(0o755)
    assert (await ran(["tell-me"], env={"PATH": f"{tmp_path}:/bin"})).stdout == "told\n"
    assert (await ran(["./tell-me"], cwd=tmp_path)).stdout == "told\n"


async def test_without_input_it_reads_nothing_and_has_no_terminal():
    output = await shell("readlink /proc/self/fd/0; cat; (: < /dev/tty) 2> /dev/null || echo none")
    assert output.stdout == "/dev/null\nnone\n"


@pytest.mark.parametrize(("given", "read"), [("ä\n", "ä\n"), (b"\xff\x00", "\\xff\x00"), ("", ""), (b"", "")])
async def test_it_reads_what_it_is_given(given, read):
    assert (await ran(["cat"], stdin=given)).stdout == read


async def test_ten_megabytes_go_through_it_both_ways():
    text = "0123456789abcde\n" * 655_360
    output = await ran(["tee", "/dev/stderr"], stdin=text, max_output=len(text))
    assert (output.stdout == text, output.stderr == text, output.stdout_truncated) == (True, True, 0)


@pytest.mark.parametrize("program", ["true", "exec <&-; seq 100000 | tail -n 1", "seq 500000 > /dev/stderr; wc -c"])
async def test_a_program_that_does_not_read_or_writes_first_does_not_hang(program):
    output = await shell(program, stdin=b"x" * 10_000_000)
    assert output.exit_code == 0
    assert output.stdout in ("", "100000\n", "10000000\n")


async def test_a_hundred_megabytes_fit_into_bounded_memory():
    lines = 0

    def count(stream, line):
        nonlocal lines
        lines += 1

    tracemalloc.start()
    try:
        output = await shell("head -c 100000000 /dev/zero; yes | head -c 100000000 >&2", max_output=1000)
        watched = await shell("head -c 100000000 /dev/zero; seq 300000 >&2", max_output=1000, on_line=count)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert output.stdout == "\0" * 500 + "\n… 99,999,000 bytes left out …\n" + "\0" * 500
    assert output.stderr_truncated == watched.stdout_truncated == 99_999_000
    assert lines == 300_001
    assert peak < 8_000_000


async def test_it_runs_in_a_loop_of_another_thread():
    found = []

    def other():
        watch_lines = []
        found.append(asyncio.run(shell("echo here; exit 4", on_line=lambda *line: watch_lines.append(line))))
        found.append(watch_lines)

    thread = threading.Thread(target=other)
    thread.start()
    await asyncio.to_thread(thread.join)
    assert found == [CommandOutput(4, "here\n"), [("stdout", "here")]]


async def test_fifty_at_once():
    outputs = await asyncio.gather(*(shell(f"echo {n}; exit {n}") for n in range(50)))
    assert outputs == [CommandOutput(n, f"{n}\n") for n in range(50)]


async def test_a_code_that_somebody_else_has_taken_is_not_taken_for_success():
    former = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with pytest.raises(CommandFailedError, match="its exit code is lost") as caught:
            await shell("exit 3")
    finally:
        signal.signal(signal.SIGCHLD, former)
    assert caught.value.exit_code is None


# --- what is kept ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 9, 10, 11, 100])
@pytest.mark.parametrize("chunk", [1, 3, 200])
def test_the_first_and_the_last_half_are_kept(size, chunk):
    data = bytes(65 + n % 26 for n in range(size))
    capture = OutputCapture(10)
    for at in range(0, size, chunk):
        capture.add(data[at : at + chunk])
    left_out = max(0, size - 10)
    kept = (
        data.decode() if not left_out else f"{data[:5].decode()}\n… {left_out:,} bytes left out …\n{data[-5:].decode()}"
    )
    assert capture.text() == (kept, left_out)


@pytest.mark.parametrize("limit", [0, 1, 2, 3, 8, 9, 10, 11, 12, 13])
def test_no_character_is_cut_in_two(limit):
    data = "a😀éb😀é".encode() * 3
    capture = OutputCapture(limit)
    capture.add(data)
    text, left_out = capture.text()
    head, _, tail = text.partition(f"\n… {left_out:,} bytes left out …\n")
    assert "\\x" not in text
    assert data.startswith(head.encode())
    assert data.endswith(tail.encode())
    assert len(head.encode()) + len(tail.encode()) + left_out == len(data)


def test_the_memory_of_a_capture_is_bounded():
    capture = OutputCapture(1000)
    for _ in range(1000):
        capture.add(b"x" * 10_000)
        assert len(capture._head) + len(capture._tail) < 80_000


# --- lines -----------------------------------------------------------------------------------------------------------


async def test_lines_are_told_while_it_runs(tmp_path):
    """The program continues only after its line has arrived."""
    fifo = tmp_path / "go"
    os.mkfifo(fifo)
    told = []

    def on_line(stream, line):
        told.append((stream, line, threading.current_thread() is threading.main_thread()))
        if line == "one":
            with open(fifo, "w") as file:
                file.write("on\n")

    output = await shell(f"echo one; read word < {fifo}; echo $word >&2; printf rest", on_line=on_line)
    assert told == [("stdout", "one", True), ("stderr", "on", True), ("stdout", "rest", True)]
    assert output.stdout == "one\nrest"


def split(*chunks, at=0.0):
    splitter = LineSplitter()
    lines = []
    for chunk in chunks:
        lines += splitter.feed(chunk, at)
    return lines + splitter.feed(b"", at, is_last=True)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("", []),
        ("a", ["a"]),
        ("a\nb\n", ["a", "b"]),
        ("\n\na", ["", "", "a"]),
        ("a\r\nb\r\n", ["a", "b"]),
        ("ä\n😀", ["ä", "😀"]),
        ("1%\r2%\r3%\r", ["1%", "3%"]),
        ("1%\r2%\r3%\ndone\n", ["1%", "2%", "3%", "done"]),
        ("\r1%\r2%\r3%", ["1%", "2%", "3%"]),
        ("1%\r2%\r\n\nx", ["1%", "2%", "", "x"]),
        ("x" * MAX_LINE + "\n", ["x" * MAX_LINE]),
        ("x" * (MAX_LINE + 1) + "\ny", ["x" * MAX_LINE + "…", "y"]),
        ("x" * (MAX_LINE * 3), ["x" * MAX_LINE + "…"]),
        ("\x1b[1mb\x07\n", ["\x1b[1mb\x07"]),
    ],
)
def test_lines_are_the_same_however_the_bytes_come(text, lines):
    data = text.encode()
    assert split(data) == lines
    for cut in range(len(data) if len(data) < 100 else 0):
        assert split(data[:cut], data[cut:]) == lines
    if len(data) < 100:
        assert split(*(data[at : at + 1] for at in range(len(data)))) == lines


def test_bytes_that_are_no_text_are_shown():
    assert split(b"a\xff\n\xc3") == ["a\\xff", "\\xc3"]


def test_a_progress_bar_tells_twenty_states_a_second_and_the_last_one():
    splitter = LineSplitter()
    lines = []
    for n in range(1000):
        lines += splitter.take_overdue(n / 1000)
        lines += splitter.feed(f"{n}\r".encode(), n / 1000)
    assert 19 <= len(lines) <= 21
    assert splitter.due_at is not None
    assert splitter.take_overdue(splitter.due_at - 0.001) == []
    assert splitter.take_overdue(splitter.due_at) == ["999"]
    assert splitter.due_at is None


async def test_a_state_of_a_progress_bar_is_told_even_when_nothing_follows(tmp_path):
    fifo = tmp_path / "go"
    os.mkfifo(fifo)
    told = []

    def on_line(stream, line):
        told.append(line)
        if line == "57%":
            with open(fifo, "w"):
                pass

    await shell(rf"printf '1%%\r2%%\r57%%\r'; : < {fifo}", on_line=on_line)
    assert told == ["1%", "57%"]


async def test_an_error_of_the_listener_ends_the_program_and_is_raised():
    def on_line(stream, line):
        if line == "ready":
            raise LookupError(line)
        pids.append(int(line))

    pids = []
    with pytest.raises(LookupError, match="ready"):
        await shell(TREE, on_line=on_line)
    assert len(pids) == 4
    assert not any(map(lives, pids))


async def test_a_loop_that_is_busy_blocks_no_program_and_fills_no_memory(monkeypatch, tmp_path):
    monkeypatch.setattr(command_process, "MOST_PENDING", 10_000)
    monkeypatch.setattr(command_process, "PATIENCE_SECONDS", 0.05)
    done = tmp_path / "done"
    told = []

    def on_line(stream, line):
        if not told:  # block the loop until the program has ended
            while not done.exists():
                time.sleep(0.01)
        told.append(line)

    output = await shell(f"seq 200000; touch {done}", on_line=on_line)
    assert output.stdout.endswith("200000\n")
    assert len(told) < 20_000
    assert any("lines are not shown" in line for line in told)


# --- what ends it ----------------------------------------------------------------------------------------------------


@pytest.fixture
def late(monkeypatch):
    """The clock of programs, which the test advances."""
    made = Late()
    monkeypatch.setattr(command_process, "time", made)
    return made


async def ended(text, *, late=None, cancels=1):
    """End a shell once it is ready; return the ids of its processes, the error, and how long the end took."""
    watch = Watch()
    task = asyncio.ensure_future(shell(text, on_line=watch, timeout=600 if late else None))
    await watch.seen.wait()
    assert all(map(lives, watch.pids))
    began = time.monotonic()
    error = None
    try:
        if late:
            late.advance()
            await task
        else:
            for _ in range(cancels):
                task.cancel()
                await asyncio.sleep(0)
            await task
    except BaseException as raised:
        error = raised
    return watch.pids, error, time.monotonic() - began


@pytest.mark.parametrize("by", ["timeout", "cancel"])
@pytest.mark.parametrize("text", [TREE, DEAF], ids=["tree", "deaf"])
async def test_the_whole_tree_is_ended(text, by, short_grace, late):
    pids, error, _ = await ended(text, late=late if by == "timeout" else None)
    assert len(pids) == 4
    assert not any(map(lives, pids))
    assert isinstance(error, StepTimeoutError if by == "timeout" else asyncio.CancelledError)


async def test_processes_with_a_group_of_their_own_are_ended_too(short_grace):
    text = "trap '' TERM; timeout 1000 sh -c 'echo $$; echo ready; sleep 1000' & echo $!; wait"
    pids, error, _ = await ended(text)
    assert len(pids) == 2
    assert not any(map(lives, pids))


async def test_processes_that_have_let_go_of_the_output_get_their_time_too(tmp_path, monkeypatch):
    """The shell dies at once; what it started has a file to write yet."""
    monkeypatch.setattr(command_process, "GRACE_SECONDS", 60)
    mark, ready = tmp_path / "mark", tmp_path / "ready"
    inner = f"trap 'sleep 0.2; echo done > {mark}; exit' TERM; echo on > {ready}; while :; do sleep 0.01; done"
    text = f'sh -c "{inner}" > /dev/null 2>&1 & until test -s {ready}; do sleep 0.01; done; echo $!; echo ready; wait'
    pids, _, _ = await ended(text)
    assert mark.read_text() == "done\n"
    assert not any(map(lives, pids))


async def test_a_stopped_process_is_ended(short_grace):
    pids, _, _ = await ended("sleep 1000 & kill -STOP $!; echo $!; echo ready; wait")
    assert not any(map(lives, pids))


async def test_a_second_cancel_ends_the_patience(monkeypatch):
    monkeypatch.setattr(command_process, "GRACE_SECONDS", 60)
    pids, error, seconds = await ended(DEAF, cancels=2)
    assert isinstance(error, asyncio.CancelledError)
    assert not any(map(lives, pids))
    assert seconds < 50


async def test_a_timeout_tells_what_was_written_so_far(late):
    missing = {"so far", "bad"}

    def on_line(stream, line):
        missing.remove(line)
        if not missing:
            late.advance()

    with pytest.raises(StepTimeoutError) as caught:
        await shell("echo so far; echo bad >&2; sleep 1000", timeout=600, on_line=on_line)
    assert caught.value.timeout_seconds == 600
    assert caught.value.path == "run"
    notes = pickle.loads(pickle.dumps(caught.value)).__notes__
    assert notes == ["The end of its standard output:\nso far\n", "The end of its standard error:\nbad\n"]


async def test_a_timeout_of_the_program_around_is_its_own():
    with pytest.raises(TimeoutError) as caught:
        async with asyncio.timeout(0.2):
            await shell("sleep 1000")
    assert not isinstance(caught.value, StepTimeoutError)
    assert asyncio.current_task().cancelling() == 0


async def test_a_program_that_ends_in_its_grace_is_ended_all_the_same(monkeypatch):
    monkeypatch.setattr(command_process, "GRACE_SECONDS", 60)
    watch = Watch()
    task = asyncio.ensure_future(
        shell("trap 'echo bye; exit 0' TERM; echo ready; while :; do sleep 0.01; done", on_line=watch)
    )
    await watch.seen.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert watch.lines[-1] == ("stdout", "bye")


async def test_what_a_program_leaves_in_the_background_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(command_process, "LINGER_SECONDS", 0.3)
    began = time.monotonic()
    output = await shell("sleep 1000 & echo $!")
    assert 0.3 <= time.monotonic() - began < 100
    pid = int(output.stdout)
    try:
        assert lives(pid)  # it was meant to stay
    finally:
        os.kill(pid, signal.SIGKILL)


async def test_what_it_writes_shortly_after_the_end_is_kept(monkeypatch):
    monkeypatch.setattr(command_process, "LINGER_SECONDS", 60)
    assert (await shell("(sleep 0.2; echo late) & echo early")).stdout == "early\nlate\n"


async def test_a_process_that_left_the_session_and_holds_the_output_is_not_waited_for(short_grace):
    watch = Watch()
    task = asyncio.ensure_future(shell("setsid sh -c 'echo $$; echo ready; exec sleep 1000' & wait", on_line=watch))
    await watch.seen.wait()
    task.cancel()
    (left,) = watch.pids
    try:
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 120)
        assert lives(left)
    finally:
        os.kill(left, signal.SIGKILL)


async def test_a_cancel_before_anything_has_begun_starts_nothing(tmp_path):
    task = asyncio.ensure_future(shell(f"touch {tmp_path}/made"))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("round_", range(20))
async def test_a_cancel_at_any_moment_of_the_start_leaves_nothing(round_):
    task = asyncio.ensure_future(shell("sleep 1000"))
    await asyncio.sleep(round_ / 4000)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("is_noted", [False, True])
async def test_a_cancel_that_comes_after_the_end_does_not_lose_the_result(tmp_path, is_noted):
    interrupts = Interrupts()
    got = []
    earlier = {*threading.enumerate()}  # one of a test before may still be ending

    async def around():
        line = f"until [ -e {tmp_path}/go ]; do sleep 0.01; done; echo ten minutes of work"
        got.append(await shell(line, interrupts=interrupts))
        await asyncio.sleep(0)
        got.append("continued")

    task = asyncio.ensure_future(around())
    await asyncio.sleep(0)
    while not (threads := [t for t in {*threading.enumerate()} - earlier if t.name == "flowckpt-command"]):
        await asyncio.sleep(0)
    (tmp_path / "go").touch()
    threads[0].join()  # the program has ended, and the loop has not heard of it
    if is_noted:
        interrupts.pending_signal = "SIGINT"
    task.cancel()
    await asyncio.wait({task})
    assert got[0] == CommandOutput(0, "ten minutes of work\n")
    assert got[1:] == (["continued"] if is_noted else [])  # a signal is the engine's to read
    assert task.cancelled() is not is_noted


def test_a_signal_ends_the_program():
    pids = []

    async def main(interrupts):
        interrupts.watch(asyncio.current_task())
        watch = Watch()

        def on_line(stream, line):
            watch(stream, line)
            if line == "ready":
                os.kill(os.getpid(), signal.SIGTERM)

        try:
            await shell(TREE, on_line=on_line, interrupts=interrupts)
        except asyncio.CancelledError as error:
            pids.extend(watch.pids)
            return interrupts.find_cause(error)

    with pytest.raises(RunInterrupted), Interrupts() as interrupts:
        cause = asyncio.run(main(interrupts))
        assert isinstance(cause, RunInterrupted)
        assert cause.signal_name == "SIGTERM"
    assert not interrupts.waits
    assert len(pids) == 4
    assert not any(map(lives, pids))


def script(tmp_path, text):
    file = tmp_path / "script.py"
    file.write_text(
        textwrap.dedent("""
            import asyncio, os, signal, sys
            from flowckpt import step
            from flowckpt.execution import command_process
            from flowckpt.execution.command import run_command
            from flowckpt.execution.interrupts import Interrupts

            command_process.GRACE_SECONDS = 60

            def shell(text, on_line, interrupts):
                action = step("run").command(["sh", "-c", text]).action
                return run_command(action, path="run", timeout_seconds=None, interrupts=interrupts, on_line=on_line)
            """)
        + textwrap.dedent(text)
    )
    return [sys.executable, str(file)]


def test_a_second_signal_ends_all_of_it_at_once(tmp_path):
    argv = script(
        tmp_path,
        f"""
        async def main(interrupts):
            interrupts.watch(asyncio.current_task())
            def on_line(stream, line):
                print(line, flush=True)
                if line == "ready":
                    os.kill(os.getpid(), signal.SIGINT)
                    asyncio.get_running_loop().call_later(0.2, os.kill, os.getpid(), signal.SIGINT)
            await shell({DEAF!r}, on_line, interrupts)

        with Interrupts() as interrupts:
            asyncio.run(main(interrupts))
        """,
    )
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    *pids, ready = done.stdout.split()
    assert (len(pids), ready) == (4, "ready"), done.stderr
    assert "RunInterrupted" in done.stderr
    assert not any(map(lives, pids))


@pytest.mark.parametrize("is_in_thread", [False, True])
def test_a_program_that_ends_without_waiting_does_not_wait_for_its_command(tmp_path, is_in_thread):
    argv = script(
        tmp_path,
        f"""
        import threading

        def begin():
            loop = asyncio.new_event_loop()
            def on_line(stream, line):
                print(line, flush=True)
                if line == "ready":
                    loop.stop()
            global task
            task = loop.create_task(shell({TREE!r}, on_line, Interrupts()))
            loop.run_forever()

        if {is_in_thread}:
            thread = threading.Thread(target=begin)
            thread.start()
            thread.join()
        else:
            begin()
        """,
    )
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    *pids, ready = done.stdout.split()
    assert (len(pids), ready) == (4, "ready"), done.stderr
    assert not any(map(lives, pids))


# --- what cannot be started ------------------------------------------------------------------------------------------


async def test_a_program_that_cannot_be_started_says_why(tmp_path):
    (tmp_path / "plain").write_text("echo hello\n")
    (tmp_path / "orphan").write_text("#!/no/such/interpreter\n")
    (tmp_path / "empty").write_text("no program\n")
    for name in ("orphan", "empty"):
        (tmp_path / name).chmod(0o755)
    cases = [
        (["no-such-program", "x"], {}, "there is no program 'no-such-program' on the PATH", "Install it"),
        (["./missing"], {"cwd": tmp_path}, "there is no file './missing'", str(tmp_path)),
        (["./plain"], {"cwd": tmp_path}, "'./plain' may not be executed", "chmod"),
        ([tmp_path], {}, "may not be executed", "interpreter"),
        (["./orphan"], {"cwd": tmp_path}, "the interpreter that './orphan' names", "#!"),
        (["./empty"], {"cwd": tmp_path}, "'./empty' is not a program", "#!"),
        (["true"], {"cwd": tmp_path / "away"}, "away' does not exist", "earlier step"),
        (["true"], {"cwd": tmp_path / "plain"}, "plain' is not a directory", "earlier step"),
        (["true", "x" * 3_000_000], {}, "too long", "stdin="),
    ]
    for argv, given, why, remedy in cases:
        with pytest.raises(CommandFailedError) as caught:
            await ran(argv, **given)
        error = caught.value
        assert why in error.message, argv
        assert remedy in error.remedy, argv
        assert len(error.message) < 1000
        assert (error.exit_code, error.path, error.argv) == (None, "run", tuple(map(str, argv)))
        assert isinstance(error.__cause__, OSError)


async def test_codes_other_than_0_are_refused_with_what_was_said():
    action = action_of(["make", "report.html"])
    check_exit("report", action, CommandOutput(0, "fine", "warning"))
    cases = [
        (CommandOutput(2, "out\n", "first\nno rule\n \n"), "'make report.html' returned 2: no rule"),
        (CommandOutput(2, "3 failed\n", ""), "'make report.html' returned 2: 3 failed"),
        (CommandOutput(1), "'make report.html' returned 1"),
        (CommandOutput(-9), "'make report.html' was killed by SIGKILL"),
        (CommandOutput(-40), "'make report.html' was killed by signal 40"),
        (CommandOutput(1, "", "\x1b[31mred\x1b[0m \x07bell\n"), "'make report.html' returned 1: red \\x07bell"),
        (CommandOutput(1, "", "x" * 5000), f"'make report.html' returned 1: {'x' * 300}…"),
    ]
    for output, message in cases:
        with pytest.raises(CommandFailedError) as caught:
            check_exit("report", action, output)
        error = caught.value
        assert error.message == message
        assert error.remedy
        assert (error.path, error.argv, error.exit_code) == ("report", ("make", "report.html"), output.exit_code)
        assert (error.stdout, error.stderr) == (output.stdout[-2000:], output.stderr[-2000:])
        assert vars(pickle.loads(pickle.dumps(error))) == vars(error)


async def test_a_shell_script_of_many_lines_makes_a_message_of_one():
    output = await shell("\nexit 3\n" + "#" * 1000)
    with pytest.raises(CommandFailedError) as caught:
        check_exit("run", action_of(["sh", "-c", "\nexit 3\n" + "#" * 1000]), output)
    assert caught.value.message.startswith("sh -c '\\nexit 3\\n###")
    assert "\n" not in str(caught.value)
    assert len(caught.value.message) < 400


async def test_no_message_shows_a_secret_of_the_environment(late):
    env = {"API_TOKEN": "s3cr3t-value", "MODE": "fast"}
    action = action_of(["sh", "-c", "echo $MODE $API_TOKEN >&2; exit 1"], env=env)
    assert "s3cr3t" not in repr(action)
    assert "fast" not in repr(action)
    with pytest.raises(CommandFailedError) as caught:
        check_exit("run", action, await shell("echo $MODE $API_TOKEN >&2; exit 1", env=env))
    assert "fast (hidden)" in str(caught.value)
    assert "s3cr3t" not in f"{caught.value} {vars(caught.value)}"
    with pytest.raises(StepTimeoutError) as caught:
        await shell("echo $API_TOKEN; sleep 1000", env=env, timeout=600, on_line=lambda *_: late.advance())
    assert "s3cr3t" not in str(caught.value.__notes__)


# --- what is refused where it is written -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "given", "said"),
    [
        ("make all", {}, r"\['make', 'all'\].*\[\"sh\", \"-c\", 'make all'\]"),
        ([], {}, "empty"),
        ((), {}, "empty"),
        (None, {}, "None"),
        ({"make"}, {}, "takes a list"),
        (b"make", {}, "takes a list"),
        (Path("make"), {}, "takes a list"),
        (["head", "-n", 5], {}, r"item 2 must be text or a path, got 5 \(int\).*Write str\(5\)"),
        (["x", None], {}, "item 1"),
        (["x", b"y"], {}, "os.fsdecode"),
        (["a\0b"], {}, "NUL"),
        (["x", "a\0b"], {}, "NUL"),
        (["x", "\ud800"], {}, "Unicode"),
        ([""], {}, "blank"),
        ([" "], {}, "blank"),
        (["x"], {"cwd": ""}, "cwd= is empty"),
        (["x"], {"cwd": 5}, "cwd= must be text or a path"),
        (["x"], {"cwd": "a\0"}, "NUL"),
        (["x"], {"env": [("A", "b")]}, "env= takes a mapping"),
        (["x"], {"env": {"": "b"}}, "name ''"),
        (["x"], {"env": {"A=B": "b"}}, "name 'A=B'"),
        (["x"], {"env": {"A\0": "b"}}, "name"),
        (["x"], {"env": {5: "b"}}, "name 5"),
        (["x"], {"env": {"A": 5}}, "'A' in env= is a int"),
        (["x"], {"env": {"A": "hush\0"}}, "'A' in env= contains NUL"),
        (["x"], {"stdin": 5}, "stdin="),
        (["x"], {"stdin": "\ud800"}, "Unicode"),
        (["x"], {"max_output": -1}, "max_output=-1"),
        (["x"], {"max_output": True}, "max_output=True"),
        (["x"], {"max_output": 1.5}, "max_output=1.5"),
    ],
)
def test_what_is_no_command_is_refused_where_it_is_written(argv, given, said):
    with pytest.raises(StepDefinitionError, match=said) as caught:
        step("make").command(argv, **given)
    assert caught.value.step == "make"
    assert caught.value.where.startswith(f"{__file__}:")
    assert caught.value.remedy
    assert "hush" not in str(caught.value)


def test_a_step_has_one_action():
    for second in (
        lambda: step("s").command(["x"]).command(["y"]),
        lambda: step("s").command(["x"]).python(len, "x"),
        lambda: step("s").python(len, "x").command(["x"]),
    ):
        with pytest.raises(StepDefinitionError, match="has an action already") as caught:
            second()
        assert caught.value.where.startswith(f"{__file__}:")


def test_what_identifies_a_command(tmp_path):
    argv = ["make", tmp_path]
    env = {"A": "b"}
    action = step("s").retry(2).command(argv, cwd=tmp_path, env=env, stdin="x", max_output=5).checkpoint().action
    argv.append("changed")
    env["A"] = "changed"
    given = {"argv": ("make", str(tmp_path)), "cwd": str(tmp_path), "env": {"A": "b"}, "stdin": "x"}
    assert (action.identity, action.step_type, action.function_name) == (given, "command", "")
    assert action_of(["x"]).identity == {"argv": ("x",), "cwd": None, "env": {}, "stdin": None}


async def test_a_file_whose_name_is_no_text_can_be_an_argument(tmp_path):
    name = os.fsdecode(b"caf\xe9")
    (tmp_path / name).write_text("here")
    assert (await ran(["cat", tmp_path / name])).stdout == "here"


@pytest.mark.parametrize("size", [5, 60_000])
async def test_what_a_program_wrote_is_read_also_where_a_stop_comes_just_behind_its_end(size):
    class Stopped(command_process.CommandProcess):
        def _check_exit(self):
            os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)  # nothing of its output is read yet
            super()._check_exit()
            self.stop()

    program = action_of([sys.executable, "-c", f"print('x' * {size}, end='')"])
    process = Stopped(program, timeout_seconds=None, on_line=None)
    process.start()
    await process.ended
    assert (process.end.exit_code, process.end.is_ended_by_us) == (0, False)
    assert process.read_outputs() == (("x" * size, 0), ("", 0))
