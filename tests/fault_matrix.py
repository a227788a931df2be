"""Every system call of every command, failing with every possible error, in forked processes without tracing.

`python -m tests.fault_matrix DIRECTORY SEED SHARE COMMAND…` prints one JSON document; `COMMAND:CALL` takes only the
calls of one function. It is a process of its own without threads, so it can fork: once per command to count the calls
of flowckpt, and once for each call and error.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import fcntl
import functools
import importlib
import io
import json
import os
import random
import re
import shutil
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import flowckpt
from flowckpt.cli import main
from flowckpt.cli.exit_codes import ExitCode

PACKAGE = os.path.dirname(flowckpt.__file__) + os.sep
PROGRAM = """
import os
from flowckpt import step, workflow

def make(name):
    with open("ledger", "a") as file:
        file.write(name + " ")
    return f"made {name} " + "x" * 60

def large():
    return "y" * 300_000

def fail():
    if not os.path.exists("go"):
        raise ValueError("not yet")

@workflow
def w():
    for name in "abc":
        yield step(name).python(make, name).checkpoint()
    yield step("large").python(large).checkpoint()
    yield step("fail").python(fail).checkpoint()
    yield step("last").python(make, "last").checkpoint()
    return "done"

@workflow
def asks():
    yield step("before").python(make, "before").checkpoint()
    return (yield step("answer").wait("go"))

@workflow
def approves():
    yield step("before").python(make, "before").checkpoint()
    return (yield step("ok").approval("Go?"))
"""

READS = (errno.EIO, errno.EACCES, errno.ESTALE)
WRITES = (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS)
CALLS = {
    "open": (*READS, errno.EMFILE, errno.ENOSPC, errno.EDQUOT, errno.EROFS),
    **dict.fromkeys(("read", "pread", "preadv"), (errno.EIO, errno.ESTALE)),
    **dict.fromkeys(("write", "pwrite", "writev", "ftruncate"), WRITES[:3]),
    **dict.fromkeys(("fsync", "fdatasync"), WRITES[:3]),
    "close": (errno.EIO,),
    **dict.fromkeys(("stat", "lstat", "fstat", "statvfs", "readlink", "access"), READS),
    **dict.fromkeys(("listdir", "scandir"), (*READS, errno.EMFILE)),
    **dict.fromkeys(("mkdir", "link", "symlink"), (*WRITES, errno.EACCES)),
    **dict.fromkeys(
        ("rename", "replace", "unlink", "remove", "rmdir", "chmod", "fchmod", "utime"), (*WRITES, errno.EACCES)
    ),
}
"""The functions of `os`, and the errors of each. Python itself repeats a call that was interrupted (EINTR)."""
OTHERS = {"flock": (errno.EINTR, errno.EIO, errno.ENOLCK), "io.open": CALLS["open"]}

COMMANDS: dict[str, list[str]] = {
    "run": ["run", "p.py:w", "--id", "new", "--events"],
    "resume": ["resume", "one", "--events"],
    "list": ["list"],
    "show": ["show", "one", "--steps"],
    "plan": ["plan", "one"],
    "check": ["store", "check"],
    "stats": ["store", "stats"],
    "prune": ["store", "prune", "two", "--keep", "1"],
    "clear": ["store", "clear", "two", "--yes"],
    "export": ["export", "two", "-o", "out.jsonl"],
    "import": ["import", "three.jsonl"],
    "copy": ["copy", "two", "--to", "file:other"],
    "signal": ["signal", "asks", "go", "--data", "1"],
    "approve": ["approve", "approves", "ok"],
    "recover": ["recover", "--once"],
    "repair": ["store", "repair", "one"],
}
READING = {"list", "show", "plan", "check", "stats", "export", "copy"}
"""Commands that change nothing in the store that they read."""


class Injector:
    """Counts the calls of flowckpt, and fails one of them.

    Args:
        number: the number of the call to fail; 0 for none.
        error: its error number.
    """

    def __init__(self, number: int = 0, error: int = 0) -> None:
        self.number, self.error = number, error
        self.calls: list[str] = []
        self.hit = ""

    def install(self) -> None:
        for name in CALLS:
            if hasattr(os, name):
                setattr(os, name, self._wrapped(name, getattr(os, name)))
        fcntl.flock = self._wrapped("flock", fcntl.flock)
        builtins.open = io.open = self._wrapped("io.open", io.open)

    def _wrapped(self, name: str, real: Callable) -> Callable:
        @functools.wraps(real)
        def call(*arguments, **options):
            if not _is_ours(sys._getframe(1)):
                return real(*arguments, **options)
            self.calls.append(name)
            if len(self.calls) == self.number:
                self.hit = name
                if name == "close":  # it is closed all the same
                    real(*arguments, **options)
                raise OSError(self.error, os.strerror(self.error))
            return real(*arguments, **options)

        return call


def _is_ours(frame) -> bool:
    """Return whether flowckpt made the call, directly or by the standard library; not an import or the user's program."""
    for _ in range(8):
        if frame is None:
            return False
        file = frame.f_code.co_filename
        if "importlib" in file or file.endswith(("p.py", "linecache.py", "traceback.py", "tokenize.py")):
            return False
        if file.startswith(PACKAGE):
            return True
        frame = frame.f_back
    return False


def in_child(
    place: Path, words: list[str], injector: Injector | None = None, seconds: int = 120
) -> tuple[int, str, str, dict]:
    """Run a command in a forked child; return its exit code, its output, and the calls that the injector saw."""
    report = place.parent / "report"
    with contextlib.suppress(FileNotFoundError):
        report.unlink()
    out, err = place.parent / "out", place.parent / "err"
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        code = 99
        write, exists = os.write, os._exit
        try:
            signal.alarm(seconds)
            os.chdir(place)
            for number, file in ((1, out), (2, err)):
                descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
                os.dup2(descriptor, number)
                os.close(descriptor)
            sys.stdin = open(os.devnull)
            sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)
            kept = os.open(report, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            sys.argv[:] = ["flowckpt", *words]
            if injector is not None:
                injector.install()
            try:
                main(words)
                code = 0
            except SystemExit as ended:
                code = ended.code if isinstance(ended.code, int) else int(bool(ended.code))
            except BaseException:
                traceback.print_exc()
                code = 98
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError, ValueError):
                    stream.flush()
            if injector is not None:
                write(kept, json.dumps({"calls": injector.calls, "hit": injector.hit}).encode())
        finally:
            exists(code & 0xFF)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    said = json.loads(report.read_text() or "{}") if report.exists() else {}
    return code, out.read_text("utf-8", "replace"), err.read_text("utf-8", "replace"), said


def prepared(root: Path) -> Path:
    """Create the store that every trial copies."""
    place = root / "pristine"
    place.mkdir(parents=True)
    (place / "p.py").write_text(PROGRAM)

    def run(*words: str, code: int = 0) -> None:
        ended, out, err, _ = in_child(place, [*words])
        assert ended == code, (words, ended, out, err)

    run("run", "p.py:w", "--id", "one", code=1)
    for name in ("asks", "approves"):
        run("run", f"p.py:{name}", "--id", name, code=3)
    (place / "go").touch()
    for name in ("two", "three"):
        run("run", "p.py:w", "--id", name)
    run("export", "three", "-o", "three.jsonl")
    run("store", "clear", "three", "--yes")
    (place / "ledger").unlink()
    return place


def snapshot(place: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(place)): file.read_bytes()
        for file in (place / ".flowckpt").rglob("*")
        if file.is_file() and file.name != "lock"
    }


def trial(root: Path, command: str, number: int, error: int) -> tuple[str, int, list[str]]:
    """Let one call of a command fail; return the call, the exit code, and the violations."""
    place = root / "trial"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(root / "pristine", place)
    before = snapshot(place) if command in READING else {}
    code, out, err, said = in_child(place, COMMANDS[command], Injector(number, error))
    wrong: list[str] = []
    if code not in {int(each) for each in ExitCode} - {int(ExitCode.INTERNAL)}:
        wrong.append(f"exit code {code}")
    if "Traceback" in err:
        wrong.append("a traceback")
    if code == ExitCode.CORRUPT or "corrupt" in out + err:
        wrong.append("an error of the system is called damage")
    # Of two stores, first which; and where the run works, which is not its failure.
    messages = len(re.findall(r"^flowckpt: (?!the failure is in |working in )", err, re.MULTILINE))
    if "flowckpt: [Errno" in err:
        wrong.append("an error of the system without what failed")
    if code not in (0, 1, 3, 10) and not (err.strip() or out.strip()):
        wrong.append("no message")
    if messages > 1:
        wrong.append(f"{messages} messages")
    if command in READING:
        if snapshot(place) != before:
            wrong.append("the store was changed")
    else:
        wrong += healthy(place, command, out)
    if wrong:
        wrong.append(f"said: {err.strip()[-600:]}")
    return said.get("hit", "none"), code, wrong


def healthy(place: Path, command: str, out: str) -> list[str]:
    """Check the store with a working disk: nothing acknowledged is lost, and every run ends like an uninterrupted one."""
    wrong: list[str] = []
    code, text, err, _ = in_child(place, ["store", "check"])
    if code != 0:
        wrong.append(f"the check ended with {code}: {text}{err}")
    runs = {"run": "new"}.get(command, "one")
    acknowledged = [
        event["checkpoint_id"] for event in _events(out) if event.get("type", event.get("event")) == "CheckpointSaved"
    ]
    made = (place / "ledger").read_text().split() if (place / "ledger").exists() else []
    code, text, err, _ = in_child(place, ["show", runs, "--json"])
    if code == 12 and runs == "new":
        if acknowledged:
            return [*wrong, f"acknowledged were {acknowledged}, and the run does not exist"]
        code, text, err, _ = in_child(place, COMMANDS["run"][:4])
        return wrong if code == 0 else [*wrong, f"a new run ended with {code}: {err}"]
    if code != 0:
        return [*wrong, f"show ended with {code}: {err}"]
    shown = json.loads(text)
    there = {each["checkpoint_id"] for each in shown["checkpoints"]}
    if lost := [each for each in acknowledged if each not in there]:
        wrong.append(f"acknowledged and lost: {lost}")
    recorded = {each["path"] for each in shown["steps"] if each["success"]}
    if runs == "one" and not recorded >= {"a", "b", "c", "large"}:
        wrong.append(f"results are lost: {recorded}")
    if shown["status"] != "completed":
        (place / "ledger").write_text("")
        code, text, err, _ = in_child(place, ["resume", runs, "--json"])
        if code != 0 or json.loads(text).get("output") != "done":
            wrong.append(f"the resume ended with {code}: {text} {err}")
        again = (place / "ledger").read_text().split()
        if repeated := [each for each in again if each in recorded]:
            wrong.append(f"recorded steps ran again: {repeated}, after {made}")
    elif shown["output"] != "done":
        wrong.append(f"the output is {shown['output']!r}")
    return wrong


def _events(out: str) -> list[dict]:
    found = []
    for line in out.splitlines():
        with contextlib.suppress(ValueError):
            document = json.loads(line)
            if isinstance(document, dict):
                found.append(document)
    return found


def explore(root: Path, seed: str, share: float, commands: list[str]) -> dict:
    """Try a share of all calls and errors of some commands."""
    chance = random.Random(seed)
    prepared(root)
    totals: dict = {"commands": {}, "codes": Counter(), "wrong": []}
    for command, _, only in (each.partition(":") for each in commands):
        place = root / "counted"
        shutil.copytree(root / "pristine", place)
        code, out, err, said = in_child(place, COMMANDS[command], Injector())
        assert code in (0, 1, 3), (command, code, out, err)
        shutil.rmtree(place)
        calls = said["calls"]
        numbered = [(n, name) for n, name in enumerate(calls, 1) if only in ("", name)]
        trials = [(n, error) for n, name in numbered for error in {**CALLS, **OTHERS}[name]]
        chosen = trials if share >= 1 else chance.sample(trials, max(1, round(len(trials) * share)))
        totals["commands"][command] = {"calls": len(calls), "faults": len(trials), "tried": len(chosen)}
        for number, error in chosen:
            hit, code, wrong = trial(root, command, number, error)
            totals["codes"][str(code)] += 1
            if wrong:
                totals["wrong"].append([command, number, hit, errno.errorcode[error], *wrong])
                print(*totals["wrong"][-1], file=sys.stderr, flush=True)
    return totals


if __name__ == "__main__":
    importlib.import_module("tests.preloaded")  # once, for all that is forked
    for name in [each for each in os.environ if each.startswith("FLOWCKPT")]:
        del os.environ[name]
    sys.dont_write_bytecode = True
    place, seed, share, *chosen = sys.argv[1:]
    os.environ["PYTHONPATH"] = ""
    print(json.dumps(explore(Path(place), seed, float(share), chosen or [*COMMANDS])))
