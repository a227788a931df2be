"""One process of a crash exploration: it runs or resumes a workflow, dies at a chosen place, and logs its actions.

The process is a fork of one in which the workflow never ran, so a resume finds nothing in memory, as after a real crash.
Before a file is changed for the first time, its bytes are kept: the explorer restores them before the next history.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from datetime import datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import attrs

from flowckpt.core import codec
from flowckpt.core.dsl import Step, Workflow
from flowckpt.core.records import CheckpointData
from flowckpt.core.records.wait import WaitKind
from flowckpt.core.system.blocking import in_sync
from flowckpt.engine import RunOptions, WorkflowEngine
from flowckpt.engine.values.result import WorkflowResult
from flowckpt.errors import FlowckptError, StepInDoubtError
from flowckpt.execution.current_step import StepCall, get_call
from flowckpt.execution.runner import Outcome, StepRunner
from flowckpt.stores.file import FileCheckpointStore
from flowckpt.testing.clock import FakeClock

RUN = "explored"
_SHARED = frozenset({"flowckpt", "attr", "attrs", "cattrs", "ulid"}) | sys.stdlib_module_names
"""Packages that all processes of an exploration need, and whose import has no effect on a workflow."""
DIED = 77
MOST_SCANNED = 2_000
"""Files of the working directory that are kept before a command runs, because its changes are not observed one by one."""
_NOT_FILES, _MEMORY = ("/dev/", "/proc/", "/sys/"), "/dev/shm/"  # noqa: S108 - files in memory are files
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_READING_METHODS = ("GET", "HEAD", "OPTIONS")
_SQLITE_PARTS = ("", "-journal", "-wal", "-shm")
_PATH_ARGUMENTS = {"os.remove": (0,), "os.rename": (0, 1), "os.link": (1,), "os.symlink": (1,), "os.truncate": (0,)}


class InjectedFailureError(Exception):
    """The failure that the explorer injects into a step."""


@attrs.frozen
class Point:
    """The place at which a history differs from an uninterrupted run.

    Attributes:
        kind: `before_step`, `after_step`, `before_save`, `after_save`, `fail_step`, `lost_file` or `twice`.
        path: the step; for a save, the last step that the save makes durable.
        number: the number of the save.
        file: the lost file.
    """

    kind: str
    path: str = ""
    number: int = 0
    file: str = ""


@attrs.frozen
class Message:
    """An answer to a wait.

    Attributes:
        path: the step that waits.
        kind: the kind of the wait.
        name: its name.
        data: the data of the signal, or whether the approval is given.
        copies: how often it is sent.
    """

    path: str
    kind: WaitKind
    name: str
    data: Any
    copies: int = 1


@attrs.frozen
class Turn:
    """The part of a history that one process executes.

    Attributes:
        point: where it dies or fails; None to run to the end.
        is_resume: whether to resume the run.
        now: the time at its start.
        messages: the answers that are sent before it resumes.
        options: the options of the run.
        saves: how many saves the earlier processes made.
    """

    point: Point | None
    is_resume: bool
    now: datetime
    messages: tuple[Message, ...] = ()
    options: RunOptions = attrs.field(factory=RunOptions)
    saves: int = 0


class Log:
    """Appends events to a file, line by line, so that they survive the process."""

    def __init__(self, file: Path) -> None:
        self._descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def add(self, what: str, **fields: Any) -> None:
        """Append one event."""
        os.write(self._descriptor, json.dumps({"what": what, **fields}, default=str).encode() + b"\n")


def digest_file(path: str) -> str:
    """Return a text that identifies the content of a file; empty if there is none."""
    try:
        if os.path.islink(path):  # noqa: PTH114 - paths are text here
            return f"link to {os.readlink(path)}"  # noqa: PTH115
        with open(path, "rb") as file:  # noqa: PTH123
            content = file.read()
    except OSError:
        return ""
    if content.startswith(b"SQLite format 3\0"):
        with (
            suppress(sqlite3.Error),
            closing(sqlite3.connect(f"{Path(path).as_uri()}?mode=ro", uri=True)) as connection,
        ):
            content = "\n".join(connection.iterdump()).encode()
    return hashlib.sha256(content).hexdigest()


class Guard:
    """Observes the files that the process changes, and keeps their bytes before the first change.

    Args:
        root: the directory of the exploration, which is not observed.
        log: the log for the changed files.
    """

    def __init__(self, root: Path, log: Log) -> None:
        self.running: list[str] = []
        self.files: dict[str, set[str]] = {}
        self._root, self._log = str(root), log
        self._kept = read_kept_paths(root)
        self._mine = threading.local()
        self._scanned: dict[str, int] | None = None

    def start(self) -> None:
        """Observe every change until the process ends."""
        sys.addaudithook(self._on_audit_event)

    def find_running_step(self) -> str:
        """Return the running step; empty if it cannot be determined."""
        call = get_call()
        if call is not None:
            return call.path
        return self.running[-1] if len(self.running) == 1 else ""

    def keep(self, path: str, *, is_change: bool = True) -> None:
        """Keep the bytes of a file if they are not kept yet; note that the running step changes it."""
        path = os.path.abspath(path)  # noqa: PTH100
        is_device = path.startswith(_NOT_FILES) and not path.startswith(_MEMORY)
        if is_device or path.startswith(self._root) or "__pycache__" in path:
            return
        if path not in self._kept:
            kind, backup = _find_file_kind(path), hashlib.sha256(path.encode("utf-8", "surrogateescape")).hexdigest()
            if kind == "file":
                shutil.copy2(path, f"{self._root}/kept/{backup}")
            target = {"target": os.readlink(path)} if kind == "link" else {}  # noqa: PTH115
            self._note_kept(path, kind, backup, **target)
        if is_change:
            self._note_change(path)

    def _note_kept(self, path: str, kind: str, backup: str = "", **fields: str) -> None:
        self._kept.add(path)
        line = json.dumps({"path": path, "kind": kind, "backup": backup, **fields})
        with open(f"{self._root}/kept.jsonl", "a", encoding="utf-8") as index:  # noqa: PTH123
            index.write(f"{line}\n")

    def _note_change(self, path: str) -> None:
        """Note that the running step changed a file."""
        step = self.find_running_step()
        if path not in self.files.setdefault(step, set()):
            self.files[step].add(path)
            self._log.add("file", path=step, file=path)

    def scan(self) -> None:
        """Keep the files of the working directory before a command, and note the changed ones after it."""
        times: dict[str, int] = {}
        for directory, below, names in os.walk(os.getcwd()):  # noqa: PTH109
            below[:] = [each for each in below if not each.startswith(".") and each != "__pycache__"]
            for name in names:
                path = f"{directory}/{name}"
                if len(times) >= MOST_SCANNED or not os.path.isfile(path):  # noqa: PTH113
                    continue
                times[path] = os.stat(path).st_mtime_ns  # noqa: PTH116
        if self._scanned is None:
            for path in times:
                self.keep(path, is_change=False)
        else:
            for path in {**times, **self._scanned}:
                if times.get(path) != self._scanned.get(path):
                    if path not in self._kept:  # a file that existed before the command was kept
                        self._note_kept(path, "absent")
                    self._note_change(path)
        self._scanned = times

    def _on_audit_event(self, event: str, args: tuple[Any, ...]) -> None:
        if event not in _OBSERVED_EVENTS or getattr(self._mine, "is_busy", False):
            return
        self._mine.is_busy = True
        try:
            self._observe(event, args)
        except (OSError, ValueError):
            pass  # the call itself will raise
        finally:
            self._mine.is_busy = False

    def _observe(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = args
            if isinstance(path, str | bytes) and _is_write(mode, flags):
                self.keep(os.fsdecode(path))
        elif event in _PATH_ARGUMENTS:
            descriptors = [each for each in args[len(_PATH_ARGUMENTS[event]) :] if isinstance(each, int) and each >= 0]
            base = os.readlink(f"/proc/self/fd/{descriptors[0]}") if descriptors else ""  # noqa: PTH115
            for place in _PATH_ARGUMENTS[event]:
                if isinstance(args[place], str | bytes):
                    self.keep(os.path.join(base, os.fsdecode(args[place])))  # noqa: PTH118
        elif event in ("os.mkdir", "os.rmdir"):
            if isinstance(args[0], str | bytes):
                self.keep(os.fsdecode(args[0]), is_change=False)
        elif event == "shutil.rmtree":
            for directory, _, names in os.walk(os.fsdecode(args[0])):
                self.keep(directory, is_change=False)
                for name in names:
                    self.keep(f"{directory}/{name}")
        elif event == "sqlite3.connect":
            name = os.fsdecode(args[0]).removeprefix("file:").partition("?")[0]
            for part in _SQLITE_PARTS if name not in ("", ":memory:") else ():
                self.keep(f"{name}{part}", is_change=not part)
        elif event == "smtplib.send":
            self._log.add("effect", path=self.find_running_step(), sent="mail")
        elif isinstance(args[1], bytes) and b" HTTP/1" in args[1][:2000]:  # else a part of a body
            verb = args[1][:80].partition(b" ")[0].decode("ascii", "replace")
            if verb.isupper() and verb not in _READING_METHODS:
                self._log.add("effect", path=self.find_running_step(), sent=f"a {verb} request")


_OBSERVED_EVENTS = {
    "open",
    "os.mkdir",
    "os.rmdir",
    "shutil.rmtree",
    "sqlite3.connect",
    "smtplib.send",
    "http.client.send",
    *_PATH_ARGUMENTS,
}


def _is_write(mode: Any, flags: Any) -> bool:
    if isinstance(mode, str):
        return any(letter in mode for letter in "wax+")
    return bool(isinstance(flags, int) and flags & _WRITES)


def _find_file_kind(path: str) -> str:
    if os.path.islink(path):  # noqa: PTH114
        return "link"
    if os.path.isdir(path):  # noqa: PTH112
        return "directory"
    return "file" if os.path.isfile(path) else "absent"  # noqa: PTH113


def read_kept_paths(root: Path) -> set[str]:
    """Return the paths whose original state is kept."""
    return {each["path"] for each in read_lines(root / "kept.jsonl")}


def read_lines(file: Path) -> Iterator[dict[str, Any]]:
    """Yield the JSON documents of a file, one per line; nothing if there is no file."""
    if file.exists():
        for line in file.read_text(encoding="utf-8").splitlines():
            yield json.loads(line)


# Changes that a step makes in the memory of its process.


def snapshot_memory(function: Any) -> dict[str, tuple[Any, int]]:
    """Return the values that a function can change in memory, by name: a token of the value, and its length if a list.

    Args:
        function: the function of a step; its globals, its closure and its bound object are inspected.
    """
    tokens: dict[str, tuple[Any, int]] = {}
    for name, value in _find_reachable_values(getattr(function, "func", function), 2).items():
        if not isinstance(value, ModuleType | type) and not callable(value):
            tokens[name] = _token(value)
        elif hasattr(value, "mock_calls"):
            tokens[name] = _token(getattr(value, "mock_calls"))  # noqa: B009 - no type has it
    return tokens


def _find_reachable_values(function: Any, depth: int) -> dict[str, Any]:
    plain = getattr(function, "__func__", function)
    code = getattr(plain, "__code__", None)
    if code is None:
        return {}
    names = {name: plain.__globals__[name] for name in _code_names(code) if name in plain.__globals__}
    for name, cell in zip(code.co_freevars, plain.__closure__ or (), strict=False):
        with suppress(ValueError):  # an empty cell
            names[name] = cell.cell_contents
    owner = getattr(function, "__self__", None)
    if not isinstance(owner, ModuleType):
        names.update({f"self.{name}": value for name, value in getattr(owner, "__dict__", {}).items()})
    for value in [*names.values()] if depth else ():
        if getattr(value, "__module__", None) == plain.__module__:
            names = {**_find_reachable_values(value, depth - 1), **names}
    return names


def _code_names(code: Any) -> Iterator[str]:
    yield from code.co_names
    for each in code.co_consts:
        if hasattr(each, "co_names"):
            yield from _code_names(each)


def _token(value: Any) -> tuple[Any, int]:
    is_list = isinstance(value, list | deque)
    if isinstance(value, list | deque | dict | set | bytearray):
        return (id(value), len(value)), len(value) if is_list else 0
    if isinstance(value, int | float | str | bytes | bool | type(None)):
        return (type(value), value), 0
    return id(value), 0


# The process.


class _Store(FileCheckpointStore):
    """Dies before or after a save."""

    def __init__(self, root: Path, log: Log, turn: Turn) -> None:
        super().__init__(root / "store")
        self._log, self._point, self._saves, self._known = log, turn.point, turn.saves, 0

    async def save(self, workflow_id: str, data: CheckpointData) -> None:
        self._saves += 1
        kind = None if self._point is None or self._point.number != self._saves else self._point.kind
        if kind == "before_save":
            os._exit(DIED)
        await super().save(workflow_id, data)
        new = data.step_results[self._known :]
        self._known = len(data.step_results)
        taken = {each.path: each.signal for each in new if each.signal}
        self._log.add("save", number=self._saves, paths=[each.path for each in new], taken=taken)
        if kind == "after_save":
            os._exit(DIED)


def watch_attempts(attempt: Callable[..., Any], guard: Guard, log: Log, point: Point | None) -> Callable[..., Any]:
    """Return a wrapper of `StepRunner.make_try` that logs the try, and dies or fails at the chosen place."""
    is_failed: list[bool] = []

    async def attempt_and_log(self: StepRunner, call: StepCall, **how: Any) -> Outcome:
        path, step = call.path, call.step
        is_here = point is not None and point.path == path and point.kind in ("before_step", "after_step", "fail_step")
        kind = point.kind if is_here and point is not None else ""
        action = step.action
        log.add("start", path=path, is_recorded=not step.modifiers.is_ephemeral)
        if kind == "before_step":
            os._exit(DIED)
        if kind == "fail_step" and not is_failed:
            is_failed.append(True)
            return Outcome(error=InjectedFailureError(f"step {path!r} fails once"))
        function = getattr(action, "function", None)
        if action.is_command:
            guard.scan()
        before, guard_files = snapshot_memory(function), len(guard.files.get(path, ()))
        guard.running.append(path)
        try:
            outcome: Outcome = await attempt(self, call, **how)
        finally:
            if action.is_command:
                guard.scan()
            guard.running.remove(path)
        if outcome.error is not None:
            log.add("failed", path=path)
            return outcome
        has_files = len(guard.files.get(path, ())) > guard_files
        log.add(
            "done", path=path, **_describe_done(step, outcome, before, snapshot_memory(function), has_files=has_files)
        )
        if kind == "after_step":
            os._exit(DIED)
        return outcome

    return attempt_and_log


def _describe_done(
    step: Step[Any],
    outcome: Outcome,
    before: Mapping[str, tuple[Any, int]],
    after: Mapping[str, tuple[Any, int]],
    *,
    has_files: bool,
) -> dict[str, Any]:
    """Return the logged fields of a finished step."""
    modifiers, is_recorded = step.modifiers, not step.modifiers.is_ephemeral
    changed = [name for name, token in after.items() if name in before and before[name][0] != token[0]]
    is_silent = step.action.step_type == "python" and outcome.tree is None and is_recorded
    has_writes = modifiers.files is not None and bool(modifiers.files.writes)
    return {
        "output": outcome.tree if modifiers.is_at_most_once else None,
        "changed": changed,
        "grown": [name for name in changed if after[name][1] > before[name][1]],
        "is_recorded": is_recorded,
        "is_protected": modifiers.needs_recorded_result or modifiers.evidence is not None or has_writes,
        "is_for_effect": is_silent and not has_files and not changed,
    }


def play(workflow: Workflow[..., Any], inputs: Mapping[str, Any], root: Path, turn: Turn) -> None:
    """Run or resume a workflow in this process, which must end afterwards; see `Turn`."""
    log = Log(root / "log.jsonl")
    guard = Guard(root, log)
    store, clock = _Store(root, log, turn), FakeClock(turn.now)
    StepRunner.make_try = watch_attempts(StepRunner.make_try, guard, log, turn.point)  # type: ignore[method-assign]
    engine = WorkflowEngine(store, clock=clock, max_crashes=0)
    guard.start()
    try:
        send_messages(engine, turn.messages)
        options: dict[str, Any] = {"workflow_id": RUN, "options": turn.options}
        if turn.is_resume:
            secrets = {name: inputs[name] for name in workflow.secret_inputs if name in inputs}
            result = engine.resume_sync(workflow, **options, **secrets)
        else:
            result = engine.run_sync(workflow, **options, **inputs)
        error = result.error
    except Exception as raised:
        result, error = None, raised
    if turn.point is None:
        log.add("modules", names=[each for each in sys.modules if each.partition(".")[0] in _SHARED])
    log.add("end", **_describe_end(workflow, result, error), now=clock.now().isoformat())


def send_messages(engine: WorkflowEngine, messages: tuple[Message, ...]) -> None:
    """Send answers to a run that waits for them."""
    sync = in_sync(engine)
    for each in messages:
        if each.kind is WaitKind.SIGNAL:
            for copy in range(each.copies):
                sync.signal(RUN, each.name, each.data, signal_id=f"{each.path} {copy}")
        elif each.data:
            sync.approve(RUN, each.name, by="explore_crashes")
        else:
            sync.reject(RUN, each.name, by="explore_crashes")


def _describe_end(
    workflow: Workflow[..., Any], result: WorkflowResult | None, error: BaseException | None
) -> dict[str, Any]:
    end: dict[str, Any] = {"status": "raised" if result is None else str(result.status), "output": None}
    if result is not None:
        end["waits"] = [{"path": each.path, "kind": str(each.kind), "name": each.name} for each in result.waits]
        end["due"] = None if result.due_at is None else result.due_at.isoformat()
        end["is_handled"] = result.handled is not None
        if error is None:
            end["output"] = codec.dumps(codec.encode(result.output, workflow.output_type, place="output"))
    if error is not None:
        end["error_type"] = type(error).__name__
        end["error"] = error.message if isinstance(error, FlowckptError) else str(error)
        end["error_path"] = getattr(error, "path", "")
        end["in_doubt"] = error.path if isinstance(error, StepInDoubtError) else ""
    return end


def find_next_start(now: str) -> datetime:
    """Return the time at which the next process starts."""
    return datetime.fromisoformat(now) + timedelta(seconds=1)
