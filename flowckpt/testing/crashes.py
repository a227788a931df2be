"""Crash exploration: a workflow is run, killed at every place, resumed, and compared with an uninterrupted run.

    run it whole ──► note saves, steps, files ──► for each place: restore the files, run, die there, resume, compare

Each run and each resume is a process of its own, forked from one in which the workflow never ran.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import re
import shutil
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import attrs

from flowckpt.core import codec
from flowckpt.core.dsl import Workflow
from flowckpt.core.identity.fingerprint import code_of
from flowckpt.core.records.wait import WaitKind
from flowckpt.core.system.attrs_base import complete_all
from flowckpt.core.system.functions import versions_of
from flowckpt.core.system.numbers import pluralize
from flowckpt.engine import RunOptions
from flowckpt.engine.determinism import drive_again, drive_in_other_process, other_world
from flowckpt.engine.engine import run_in_own_loop
from flowckpt.engine.values.inputs import bind_inputs, check_workflow
from flowckpt.engine.values.target import describe_target
from flowckpt.errors import FlowckptError
from flowckpt.stores.file import FileCheckpointStore
from flowckpt.testing.crash_child import (
    DIED,
    RUN,
    Message,
    Point,
    Turn,
    digest_file,
    find_next_start,
    play,
    read_kept_paths,
    read_lines,
)

_START = datetime(2026, 1, 1, tzinfo=UTC)
MOST_TURNS = 100
"""The most processes of one history: a run that is suspended more often is not explored further."""
MOST_HISTORIES = 500
_MEMORY = "/dev/shm"  # noqa: S108 - the directory in it is made by tempfile


@attrs.frozen
class CrashFinding:
    """A mistake in a workflow that a crash, a failure or a lost file reveals.

    Attributes:
        mistake: `ran_twice`, `lost_file`, `nondeterministic`, `kept_in_memory`, `swallowed_failure`, `answered_twice`,
            or `differs` for any other difference.
        path: the step.
        history: the events that reveal it, in words.
        message: the difference, its cause and the fix.
    """

    mistake: str
    path: str
    history: str
    message: str

    def __str__(self) -> str:
        return self.message


@attrs.frozen
class CrashReport:
    """The findings of `explore_crashes`.

    Attributes:
        workflow_name: the workflow.
        steps: the number of steps of an uninterrupted run.
        histories: the number of histories that were tried.
        findings: the mistakes, each with its shortest history.
        notes: what was not compared, and why.
    """

    workflow_name: str
    steps: int
    histories: int
    findings: tuple[CrashFinding, ...]
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        tried = f"{self.workflow_name}: {pluralize(self.steps, 'step')}, {self.histories} histories with a crash or a failure"
        lines = [tried, *map(str, self.findings), *(f"note: {each}" for each in self.notes)]
        return "\n".join(lines if self.findings else [*lines, "no difference"])


class CrashesFoundError(AssertionError):
    """A crash, a failure or a lost file changes what a workflow does.

    Attributes:
        report: the findings.
    """

    def __init__(self, report: CrashReport) -> None:
        super().__init__(str(report))
        self.report = report


def explore_crashes(
    workflow: Workflow[..., Any],
    /,
    *,
    answers: Mapping[str, Any] | None = None,
    may_fail: Collection[str] = (),
    options: RunOptions | None = None,
    **inputs: Any,
) -> CrashReport:
    """Kill a run at every place, resume it, and compare it with an uninterrupted one.

    The workflow runs once, then again with a crash before and after every save and every step, with every step failing
    once, with each written file lost, and with each signal sent twice. Output, files and calls must be the same at the
    end. The steps really run, in forked processes. Files are restored at the end; effects outside the machine are not
    undone, so choose harmless inputs.

    Args:
        workflow: the workflow.
        answers: by name, the data of each awaited signal, and True or False for each approval. A list answers the
            first wait of that name with its first item, and so on.
        may_fail: names of steps whose failure the workflow handles on purpose.
        options: the options of the run.
        **inputs: its inputs.

    Raises:
        CrashesFoundError: something differs; an `AssertionError` that names each difference and its fix.
        FlowckptError: the uninterrupted run does not complete.
    """
    report = crash_report(workflow, inputs, answers=answers or {}, may_fail=may_fail, options=options or RunOptions())
    if report.findings:
        raise CrashesFoundError(report)
    return report


def crash_report(
    workflow: Workflow[..., Any],
    inputs: Mapping[str, Any],
    *,
    answers: Mapping[str, Any],
    may_fail: Collection[str] = (),
    options: RunOptions,
) -> CrashReport:
    """Explore a workflow and return the report; see `explore_crashes`."""
    check_workflow(workflow)
    bind_inputs(workflow, inputs)
    memory = _MEMORY if os.access(_MEMORY, os.W_OK | os.X_OK) else None  # syncs are free there
    with tempfile.TemporaryDirectory(prefix="flowckpt-crashes-", dir=memory) as directory:
        root = Path(directory).resolve()
        (root / "kept").mkdir()
        explorer = _Explorer(workflow, dict(inputs), dict(answers), frozenset(may_fail), options, root)
        try:
            return explorer.explore()
        finally:
            explorer.restore()


@attrs.frozen
class _HistoryLog:
    """The log and the end of one history.

    Attributes:
        lines: the log of its processes.
        ends: the end of each process; None if it died.
        files: the digest of each file at the end.
    """

    lines: list[dict[str, Any]]
    ends: list[dict[str, Any] | None]
    files: dict[str, str]

    @property
    def last(self) -> dict[str, Any]:
        """The end of the last process."""
        return self.ends[-1] or {"status": "died"}

    @property
    def error(self) -> str:
        """The class and the message of the error at the end; empty if there is none."""
        return f"{self.last.get('error_type', '')}: {self.last.get('error', '')}".strip(": ")

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Return the events of one kind."""
        return _select(self.lines, kind)

    def count_done(self) -> Counter[str]:
        """Return how often each recorded step was done."""
        return Counter(each["path"] for each in self.events("done") if each["is_recorded"])


def _select(lines: Iterable[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """Return the events of one kind."""
    return [each for each in lines if each["what"] == kind]


@attrs.define
class _Explorer:
    workflow: Workflow[..., Any]
    inputs: dict[str, Any]
    answers: dict[str, Any]
    may_fail: frozenset[str]
    options: RunOptions
    root: Path
    findings: dict[tuple[str, str], CrashFinding] = attrs.field(factory=dict)
    notes: list[str] = attrs.field(factory=list)
    whole: _HistoryLog = attrs.field(init=False)
    volatile: set[str] = attrs.field(factory=set)
    is_output_volatile: bool = False

    def explore(self) -> CrashReport:
        self.whole = self._play(None)
        # Import modules and fill caches here, once, instead of in every process.
        for each in self.whole.events("modules"):
            for module in each["names"]:
                with suppress(ImportError):  # a module that exists only in memory
                    importlib.import_module(module)
        versions_of(["flowckpt"])
        complete_all()
        code_of(self.workflow.function)
        self._check_whole()
        self._check_determinism()
        self._compare_whole(self._play(None))
        points = [*self._choose_points()]
        if len(points) > MOST_HISTORIES:
            self.notes.append(f"{MOST_HISTORIES} of {len(points)} histories were tried")
            points = points[:MOST_HISTORIES]
        for point in points:
            self._judge(point, self._play(point))
        steps = len({each["path"] for each in self.whole.events("done")})
        findings = tuple(self.findings.values())
        return CrashReport(self.workflow.name, steps, len(points), findings, tuple(self.notes))

    # --- the uninterrupted run ---------------------------------------------------------------------------------------

    def _check_whole(self) -> None:
        last = self.whole.last
        if last["status"] == "completed":
            return
        waits = [each for each in last.get("waits", ()) if each["name"]]
        if last["status"] == "suspended" and waits:
            name = waits[0]["name"]
            example = f"answers={{{name!r}: …}}"
            raise FlowckptError(
                f"the run of {self.workflow.name!r} waits for {name!r}, which has no answer",
                remedy=f"Give one: explore_crashes(…, {example}), or --answer {name}=JSON.",
            )
        raise FlowckptError(
            f"the uninterrupted run of {self.workflow.name!r} ended as {last['status']}: {self.whole.error}",
            remedy="Choose inputs with which it completes: the other histories are compared with that run.",
        )

    def _compare_whole(self, second: _HistoryLog) -> None:
        """Note the differences between two uninterrupted runs, which cannot be compared."""
        if second.last.get("output") != self.whole.last["output"]:
            self.is_output_volatile = True
            self.notes.append("the output differs between two uninterrupted runs; it is not compared")
        for path in {**self.whole.files, **second.files}:
            if self.whole.files.get(path) != second.files.get(path):
                self.volatile.add(path)
        if shown := sorted(map(_relative_path, self.volatile & {*self.whole.files}))[:5]:
            self.notes.append(f"files that differ between two uninterrupted runs are not compared: {', '.join(shown)}")

    def _check_determinism(self) -> None:
        """Replay the workflow from the record of its run, and note the differences."""
        file = self.root / "differences.jsonl"

        def drive() -> None:
            latest = run_in_own_loop(FileCheckpointStore(self.root / "store").load_latest(RUN))
            assert latest is not None, "a run that has completed has a checkpoint"
            differences, _ = drive_again(self.workflow, self.inputs, latest, place="this process")
            with other_world():
                if not differences:
                    differences, _ = drive_again(self.workflow, self.inputs, latest, place="another environment")
            target = self.options.target or describe_target(self.workflow)
            for seed in ("1", "2", "3"):  # the order of a small set may be the same by chance
                others, note = drive_in_other_process(target, self.inputs, self.workflow, latest, seed=seed)
                differences += others or ()
                if others or note:
                    break
            lines = [attrs.asdict(each) for each in differences]
            lines += [{"note": note}] if note else []
            file.write_text("".join(f"{json.dumps(each)}\n" for each in lines), encoding="utf-8")

        _run_forked(drive, self.root)
        for each in read_lines(file):
            if "note" in each:
                self.notes.append(each["note"])
            else:
                self._add_difference(each)

    def _add_difference(self, each: Mapping[str, str]) -> None:
        path, where = each["path"], each["where"]
        about = {"arguments": "other arguments", "order": "its turn in another order", "output": "another output"}
        what = about.get(each["kind"], "other code")
        if each["place"] == "another process":
            why = "It depends on the order of a set, or on another value that differs between processes. Sort it: sorted(…)."
        else:
            why = (
                "It depends on the time, a random number, a directory or the environment. Read the time with "
                "`yield from now()`, numbers with `random()`, and other values in a step."
            )
        subject = f"`{path}` got {what}" if path else f"the workflow has {what}"
        now = f": first {each['recorded']}, then {each['now']}" if each["kind"] != "arguments" else f": {each['now']}"
        message = f"{subject} when the code of the workflow ran again, at {where}{now}. A resume runs it again. {why}"
        self._add_finding("nondeterministic", path, "the run was resumed", message)

    # --- the histories -----------------------------------------------------------------------------------------------

    def _choose_points(self) -> Iterator[Point]:
        """Yield the places, those with the shortest histories first; of repeated steps only the first, second and last."""
        steps = [each for each in self.whole.events("start") if each["is_recorded"]]
        paths = [*dict.fromkeys(each["path"] for each in steps)]
        chosen = [*_sample_paths(paths)]
        for kind in ("after_step", "before_step"):
            yield from (Point(kind, path) for path in chosen)
        saves = self.whole.events("save")
        few = {*_sample_paths([*dict.fromkeys(path for each in saves for path in each["paths"][-1:])])}
        for kind in ("before_save", "after_save"):
            for each in saves:
                last = "".join(each["paths"][-1:])
                if not last or last in few:
                    yield Point(kind, last, each["number"])
        yield from (Point("fail_step", path) for path in chosen if self.may_fail.isdisjoint((path, _strip_keys(path))))
        yield from self._choose_lost_files({*chosen})
        if any(each["taken"] for each in saves):
            yield Point("twice")

    def _choose_lost_files(self, chosen: Collection[str]) -> Iterator[Point]:
        """Yield the loss of each file that a step wrote, after the save that made the step durable."""
        saved: dict[str, int] = {}
        for each in self.whole.events("save"):
            for path in each["paths"]:
                saved.setdefault(path, each["number"])
        writers: dict[str, str] = {}
        for each in self.whole.events("file"):
            writers[each["file"]] = each["path"]  # the last one
        for file, step in writers.items():
            if step in chosen and step in saved and self.whole.files.get(file) and not Path(file).is_dir():
                yield Point("lost_file", step, saved[step], file)

    def _play(self, point: Point | None) -> _HistoryLog:
        """Execute one history to its end, starting from the original files."""
        self.restore()
        log = self.root / "log.jsonl"
        log.unlink(missing_ok=True)
        shutil.rmtree(self.root / "store", ignore_errors=True)
        ends: list[dict[str, Any] | None] = []
        answered: dict[str, Message] = {}
        turn = Turn(_find_death(point), False, _START, options=self.options)
        for _ in range(MOST_TURNS):
            _run_forked(lambda turn=turn: play(self.workflow, self.inputs, self.root, turn), self.root)  # type: ignore[misc]
            lines = [*read_lines(log)]
            ended = _select(lines, "end")
            is_dead = len(ended) == sum(each is not None for each in ends)
            end = None if is_dead else ended[-1]
            ends.append(end)
            has_run = bool(_select(lines, "save"))
            now = find_next_start(ended[-1]["now"]) if ended else turn.now
            if end is None:
                if point is not None and point.kind == "lost_file":
                    Path(point.file).unlink(missing_ok=True)
                if len(ends) > 1 and ends[-2] is None:
                    break  # it died again without a point: the workflow itself ends the process
                messages = turn.messages if not has_run else ()
                turn = Turn(None, has_run, now, messages, self.options)
                continue
            following = self._next_turn(end, now, point, answered, lines, len(ends))
            if following is None:
                break
            turn = following
        return _HistoryLog([*read_lines(log)], ends, {path: digest_file(path) for path in read_kept_paths(self.root)})

    def _next_turn(
        self,
        end: dict[str, Any],
        now: datetime,
        point: Point | None,
        answered: dict[str, Message],
        lines: list[dict[str, Any]],
        turns: int,
    ) -> Turn | None:
        """Return the turn of the next process; None if the history has ended."""
        if doubted := end.get("in_doubt"):
            done = [each for each in _select(lines, "done") if each["path"] == doubted]
            how: dict[str, Any] = {"not_done": [doubted]}
            if done:
                how = {"done": {doubted: codec.decode(done[-1]["output"], Any)}}
            return Turn(None, True, now, (), attrs.evolve(self.options, **how))
        ended = _select(lines, "end")
        failed = sum(each["status"] == "failed" for each in ended)
        if end["status"] == "failed" and failed == 1 and point is not None and not end.get("is_handled"):
            return Turn(None, True, now, (), self.options) if point.kind == "fail_step" else None
        if end["status"] != "suspended":
            return None
        messages = []
        for each in end["waits"]:
            name, path = each["name"], each["path"]
            if path in answered or not name or name not in self.answers:
                continue
            data = self.answers[name]
            if isinstance(data, list):
                before = sum(message.name == name for message in answered.values())
                if before >= len(data):
                    continue
                data = data[before]
            copies = 2 if point is not None and point.kind == "twice" else 1
            answered[path] = Message(path, WaitKind(each["kind"]), name, data, copies)
            messages.append(answered[path])
        if not messages:
            if end["due"] is None:
                return None
            now = max(now, datetime.fromisoformat(end["due"]))
        has_died = len(ended) < turns
        place = None if has_died else _find_death(point)
        return Turn(place, True, now, tuple(messages), self.options, len(_select(lines, "save")))

    def restore(self) -> None:
        """Restore all files to their state before the exploration."""
        directories: list[tuple[str, str]] = []
        for each in read_lines(self.root / "kept.jsonl"):
            path, kind = each["path"], each["kind"]
            if kind == "directory" or (kind == "absent" and Path(path).is_dir() and not Path(path).is_symlink()):
                directories.append((path, kind))
            elif kind == "absent":
                Path(path).unlink(missing_ok=True)
            elif kind == "file":
                backup = self.root / "kept" / each["backup"]
                Path(path).parent.mkdir(parents=True, exist_ok=True)
                if digest_file(path) != digest_file(str(backup)):
                    Path(path).unlink(missing_ok=True)
                    shutil.copy2(backup, path)
            elif kind == "link":
                Path(path).unlink(missing_ok=True)
                Path(path).symlink_to(each["target"])
        for path, kind in sorted(directories, reverse=True):
            with suppress(OSError):
                if kind == "absent":
                    Path(path).rmdir()
                else:
                    Path(path).mkdir(parents=True, exist_ok=True)

    # --- the comparison ----------------------------------------------------------------------------------------------

    def _judge(self, point: Point, played: _HistoryLog) -> None:
        judges = {"twice": self._judge_twice, "fail_step": self._judge_failure, "lost_file": self._judge_lost_file}
        judges.get(point.kind, self._judge_crash)(point, played)

    def _find_difference(self, played: _HistoryLog) -> str:
        """Return how the end of a history differs from that of the uninterrupted run; empty if it does not."""
        last, whole = played.last, self.whole.last
        if last["status"] != "completed":
            error = played.error[:300]
            return f"the resume ended as {last['status']}{f' ({error})' if error else ''}"
        if not self.is_output_volatile and last["output"] != whole["output"]:
            return f"the output is {_shorten(last['output'])} and not {_shorten(whole['output'])}"
        files = self._find_differing_files(played)
        return f"{_relative_path(files[0])} differs" if files else ""

    def _find_differing_files(self, played: _HistoryLog) -> list[str]:
        return [
            path
            for path, digest in self.whole.files.items()
            if digest and path not in self.volatile and played.files.get(path) != digest
        ]

    def _judge_crash(self, point: Point, played: _HistoryLog) -> None:
        whole, history = self.whole.count_done(), _describe_point(point)
        twice = [path for path, count in played.count_done().items() if count > whole.get(path, 0)]
        effects = {each["path"]: each["sent"] for each in played.events("effect")}
        difference = self._find_difference(played)
        changed = {each["file"] for each in played.events("file") if each["path"] in twice}
        files = [path for path in self._find_differing_files(played) if path in changed]
        for path in twice:
            done = [each for each in played.events("done") if each["path"] == path]
            mine = {each["file"] for each in played.events("file") if each["path"] == path}
            has_trace = any(each["grown"] or each["is_for_effect"] for each in done) or path in effects
            is_open = not any(each["is_protected"] for each in done)
            spoilt = [each for each in files if each in mine]
            if spoilt or (is_open and has_trace):
                what = f", and {_relative_path(spoilt[0])} differs" if spoilt else ""
                self._add_finding(
                    "ran_twice",
                    path,
                    history,
                    f"`{path}` ran twice{what}: {_describe_death(point, path)}. Mark it at_most_once or claim its effect.",
                )
                return
        if difference and not self._is_known(played):
            self._add_change(point, played, difference, has_files=bool(files))

    def _add_change(self, point: Point, played: _HistoryLog, difference: str, *, has_files: bool = False) -> None:
        """Add a difference that is not due to a step that ran twice; if a step changed values in memory, it is due to these."""
        names = sorted({name for each in self.whole.events("done") for name in each["changed"]})
        history = _describe_point(point)
        if names and not has_files:
            message = (
                f"{history}, and {difference}: a step changes {_quote_names(names)} in memory, which a crash loses. "
                "Return the value from the step, and pass it on as an argument."
            )
            self._add_finding("kept_in_memory", names[0], history, message)
        else:
            path = played.last.get("error_path") or point.path
            self._add_finding("differs", path, history, f"{history}, and {difference}.")

    def _is_known(self, played: _HistoryLog) -> bool:
        """Return whether a resume stopped because the workflow is nondeterministic, which is reported already."""
        is_stop = played.last.get("error_type") in ("StaleStepError", "WorkflowChangedError")
        return is_stop and any(each.mistake == "nondeterministic" for each in self.findings.values())

    def _judge_failure(self, point: Point, played: _HistoryLog) -> None:
        difference = self._find_difference(played)
        if not difference or self._is_known(played):
            return
        steps = {each["path"] for each in played.events("start")}
        is_handled = bool(steps - {each["path"] for each in self.whole.events("start")})
        if is_handled or played.last.get("is_handled"):
            return  # another step was run instead
        path, history = point.path, _describe_point(point)
        if len(played.ends) == len(self.whole.ends) and played.last["status"] == "completed":
            message = (
                f"`{path}` failed once, and the run completed anyway: {difference}. The failure was swallowed. Raise "
                f"it again, run another step instead, or name the step in may_fail."
            )
            self._add_finding("swallowed_failure", path, history, message)
        elif played.last["status"] != "failed" or played.last.get("error_path") != path:
            self._add_change(point, played, difference)

    def _judge_lost_file(self, point: Point, played: _HistoryLog) -> None:
        difference = self._find_difference(played)
        last, path = played.last, point.path
        is_loud = last["status"] in ("failed", "raised") and last.get("error_path") == path
        if not difference or is_loud or self._is_known(played) or not any(each is None for each in played.ends):
            return
        file = _relative_path(point.file)
        message = (
            f"`{path}` wrote {file}, which nothing claims: with the file lost after a crash, its result was reused, and "
            f'{difference}. Claim it: .evidence(file_sha256("{file}")) or .writes("{file}").'
        )
        self._add_finding("lost_file", path, _describe_point(point), message)

    def _judge_twice(self, point: Point, played: _HistoryLog) -> None:
        for save in played.events("save"):
            for path, signal in save["taken"].items():
                wait, _, copy = signal.rpartition(" ")
                if copy.isdigit() and wait not in ("", path):
                    message = (
                        f"`{path}` took the answer to `{wait}`: the same message was sent twice, which may happen. Give "
                        "each wait a name of its own, for example with the number of the item."
                    )
                    self._add_finding("answered_twice", path, "each signal was sent twice", message)
                    return
        if difference := self._find_difference(played):
            message = f"each signal was sent twice, and {difference}."
            self._add_finding("answered_twice", "", "each signal was sent twice", message)

    def _add_finding(self, mistake: str, path: str, history: str, message: str) -> None:
        self.findings.setdefault((mistake, _strip_keys(path)), CrashFinding(mistake, path, history, message))


def _find_death(point: Point | None) -> Point | None:
    """Return where the first process dies: for a lost file, after the save of its step."""
    if point is None or point.kind == "twice":
        return None
    return Point("after_save", point.path, point.number) if point.kind == "lost_file" else point


def _strip_keys(path: str) -> str:
    """Return the path of a step without the numbers and keys that distinguish its repetitions."""
    return re.sub(r"\[[^\]]*\]", "", path)


def _sample_paths(paths: list[str]) -> Iterator[str]:
    """Yield the first, the second and the last path of each step name, in the given order."""
    groups: dict[str, list[str]] = {}
    for path in paths:
        groups.setdefault(_strip_keys(path), []).append(path)
    chosen = {path for group in groups.values() for path in (*group[:2], group[-1])}
    yield from (path for path in paths if path in chosen)


_PLACES = {
    "before_step": "the process died before `{path}` ran",
    "after_step": "the process died after `{path}` ran and before its result was saved",
    "before_save": "the process died before save {number}{of}",
    "after_save": "the process died right after save {number}{of}",
    "fail_step": "`{path}` failed once",
    "lost_file": "the process died after the checkpoint of `{path}`, and {file} was lost",
}


def _describe_point(point: Point) -> str:
    of = f" (of `{point.path}`)" if point.path else ""
    return _PLACES[point.kind].format(path=point.path, number=point.number, of=of, file=_relative_path(point.file))


def _describe_death(point: Point, path: str) -> str:
    is_near = point.path == path
    return "the process died after it and before its checkpoint" if is_near else _describe_point(point)


def _quote_names(names: list[str]) -> str:
    return ", ".join(f"`{each}`" for each in names[:3])


def _relative_path(path: str) -> str:
    with suppress(ValueError):
        return str(Path(path).relative_to(Path.cwd()))
    return path


def _shorten(text: str | None) -> str:
    text = str(text)
    return text if len(text) <= 120 else f"{text[:120]}…"


def _run_forked(work: Callable[[], None], root: Path) -> None:
    """Call a function in a forked process.

    Raises:
        FlowckptError: the function raised.
    """
    errors = root / "errors.txt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads: the child uses none of them
        child = os.fork()
    if child == 0:
        gc.disable()  # a collection would copy the memory that the two processes share
        try:
            nowhere = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0, 1, 2):
                os.dup2(nowhere, descriptor)
            sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 - until the end
            work()
            os._exit(0)
        except BaseException:
            errors.write_text(traceback.format_exc(), encoding="utf-8")
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code not in (0, DIED) and errors.exists():
        raise FlowckptError(f"a process of the exploration failed: {errors.read_text(encoding='utf-8')[-2000:]}")
