"""Results of other runs that a step with `.cache()` may take, and the index that finds them.

The index decides nothing. It maps the digest of a call to the runs that recorded it. A result is taken only from the
record of its run, after it was compared with the step again and its evidence was checked. So a missing, old or damaged
index costs time, but never gives a wrong result. The index is built from the runs when a step first finds nothing in
it; newer results are added whenever a run first finds nothing.

If a store keeps no index (a third party's store, or one with a key), each attempt has one in memory. So does a plan,
which writes nothing.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from hashlib import sha256
from math import isinf
from typing import Any

import attrs

from flowckpt.core import codec
from flowckpt.core.codec.blob import plain_tree
from flowckpt.core.codec.results import encode_time
from flowckpt.core.dsl import Step
from flowckpt.core.identity.call import CallIdentity, identify
from flowckpt.core.identity.secrets import KnownSecrets, refuse_secrets
from flowckpt.core.identity.values import is_incomplete
from flowckpt.core.records import CheckpointData, StepResult
from flowckpt.core.records.listing import IMPORTED, RunInfo
from flowckpt.core.system.clock import Clock
from flowckpt.engine.rules.judge import Judge
from flowckpt.engine.rules.reasons import ResumePolicy
from flowckpt.engine.run.resumption import find_moved_versions
from flowckpt.errors import FlowckptError
from flowckpt.evidence.report import VerificationReport
from flowckpt.execution.claims import ClaimChecker, meets_demands
from flowckpt.execution.runner import restore_value
from flowckpt.stores.base import Ability, StoreBase

_log = logging.getLogger("flowckpt")

_RUNS = "runs"
"""The part of the index that lists the indexed runs, and how far each was indexed."""
_MOST = 16
"""How many results of one call the index lists: the newest ones, and at most two with equal evidence."""
_MOST_ALIKE = 2
_MOST_SOURCES = 4
"""How many source runs are kept in memory: a map often takes all of its results from one run."""
_FEW_GONE = 100
"""The index is rebuilt when it lists more than this many removed runs, and more removed than existing ones."""


@attrs.frozen(eq=False, repr=False)
class Cached:
    """A result of another run that a step takes.

    Attributes:
        result: the result, under the step's own path.
        value: the output as the generator gets it.
        tree: the encoded output.
        report: the present verdicts on its claims; None without claims.
        source: where the result was first made, in the form of `StepResult.source`.
        workflow_id: the run that the result is taken from.
        path: the step of that run.
    """

    result: StepResult
    value: Any
    tree: Any
    report: VerificationReport | None
    source: Mapping[str, Any]
    workflow_id: str
    path: str

    @property
    def sentence(self) -> str:
        """A sentence that names the source."""
        return f"step {self.path} of run {self.workflow_id} has its result"


def call_key(step_type: str, call: CallIdentity | StepResult) -> str:
    """Return the key of a call in the index; empty for a call that cannot be compared with others."""
    is_known = call.fingerprint if step_type == "python" else step_type == "command"
    if not is_known or any(map(is_incomplete, call.arguments.values())):
        return ""
    identity = [step_type, call.function, call.fingerprint, call.version, sorted(call.arguments.items())]
    return sha256(codec.dumps(identity).encode("utf-8", "surrogatepass")).hexdigest()[:40]


def is_source(result: StepResult) -> bool:
    """Return whether other runs may take a result: the step was executed, succeeded, and has no compensation."""
    return result.success and not result.marks and not result.signal


def ended_at(result: StepResult) -> datetime | None:
    """Return when a result was computed, in its original run."""
    if result.source:
        return datetime.fromisoformat(result.source["ended_at"])
    return None if result.started_at is None else result.started_at + timedelta(milliseconds=result.duration_ms)


# The index: which runs have recorded a call.


Note = list[str]
"""The run, the path, the time of the execution, and a digest of the claims."""


@attrs.define(eq=False, repr=False)
class ResultIndex:
    """The index of one store, for one attempt or plan.

    Attributes:
        store: the store.
        is_kept: whether the store keeps the index; otherwise it is in memory.
    """

    store: StoreBase
    is_kept: bool
    _parts: dict[str, dict[str, Any]] = attrs.field(init=False, factory=dict)
    _is_damaged: bool = attrs.field(init=False, default=False)

    async def notes(self, key: str) -> list[Note]:
        """Return where a call was recorded, newest execution first."""
        part = await self._read(key[:2])
        return sorted(part.get(key, ()), key=lambda note: note[2], reverse=True)

    async def refresh(self, own: str) -> None:
        """Add newer results to the index.

        If the store cannot keep the index now, it is built in memory.

        Args:
            own: the current run, whose results are not needed.
        """
        try:
            await self._refresh(own)
        except FlowckptError as error:
            if not self.is_kept:
                raise
            _log.info("the index of results in %r cannot be kept: %s", self.store, error.message)
            self.is_kept = False
            await self._refresh(own)

    async def _refresh(self, own: str) -> None:
        runs = await self._read(_RUNS)
        listed = {
            info.workflow_id: _describe_progress(info) for info in await self.store.list_runs() if not info.is_held
        }
        gone = len(runs.keys() - listed.keys())
        if self._is_damaged or gone > max(len(listed), _FEW_GONE):
            if self._is_damaged:
                _log.warning("the index of results in %r is rebuilt", self.store)
            await self._clear()
            runs = {}
        new = [run for run, mark in listed.items() if run != own and runs.get(run) != mark]
        if not new:
            return
        added: dict[str, dict[str, list[Note]]] = {}
        for run in reversed(new):  # oldest first
            for result in await self._load_results(run):
                self._add(added, run, result)
            runs[run] = listed[run]
        for name, notes in added.items():
            part = await self._read(name)
            if self._is_damaged and len(runs) > len(new):  # it also held notes of other runs
                await self._refresh(own)
                return
            for key, more in notes.items():
                part[key] = _select_newest([*part.get(key, ()), *more])
            await self._write(name, part)
        await self._write(_RUNS, runs)

    async def _load_results(self, run: str) -> Iterable[StepResult]:
        try:
            latest = await self.store.load_latest(run)
        except FlowckptError as error:  # the run is damaged: each use of it reports that
            _log.info("run %s is left out of the index of results: %s", run, error.message)
            return ()
        return () if latest is None else latest.step_results

    def _add(self, added: dict[str, dict[str, list[Note]]], run: str, result: StepResult) -> None:
        moment = ended_at(result)
        key = call_key(result.step_type, result) if is_source(result) and moment is not None else ""
        if key and moment is not None:
            claims = sha256(codec.dumps((result.evidence or {}).get("pack")).encode()).hexdigest()[:16]
            added.setdefault(key[:2], {}).setdefault(key, []).append([run, result.path, encode_time(moment), claims])

    async def _read(self, name: str) -> dict[str, Any]:
        if not self.is_kept:
            return self._parts.setdefault(name, {})
        content = await self.store.read_index(name)
        if content is None:
            return {}
        part: dict[str, Any] = {}
        try:
            part = {**json.loads(content)}
            is_sound = name == _RUNS or all(_is_note(note) for notes in part.values() for note in notes)
        except (ValueError, TypeError, RecursionError):
            is_sound = False
        self._is_damaged |= not is_sound
        return part if is_sound else {}

    async def _write(self, name: str, part: dict[str, Any]) -> None:
        if self.is_kept:
            await self.store.write_index(name, codec.dumps(part).encode())
        else:
            self._parts[name] = part

    async def _clear(self) -> None:
        self._parts.clear()
        self._is_damaged = False
        if self.is_kept:
            await self.store.clear_index()


def _describe_progress(info: RunInfo) -> str:
    return f"{info.attempt}.{info.steps}.{encode_time(info.updated_at)}"


def _is_note(note: Any) -> bool:
    return isinstance(note, list) and len(note) == 4 and all(isinstance(each, str) for each in note)


def _select_newest(notes: Sequence[Note]) -> list[Note]:
    """Return the notes to keep for one call: a few for equal claims, and one for each place."""
    places: dict[tuple[str, str], Note] = {(note[0], note[1]): note for note in notes}
    selected: list[Note] = []
    alike: dict[str, int] = {}
    for note in sorted(places.values(), key=lambda note: note[2], reverse=True):
        alike[note[3]] = alike.get(note[3], 0) + 1
        if alike[note[3]] <= _MOST_ALIKE and len(selected) < _MOST:
            selected.append(note)
    return selected


# Taking a result.


@attrs.define(eq=False, repr=False)
class ResultCache:
    """Finds results that the steps of one attempt, or of one plan, may take.

    Attributes:
        store: the store of the runs.
        workflow_id: the run that takes the results.
        claims: checks the results' claims.
        clock: the time.
        secrets: the secrets of the run.
        is_plan: whether nothing may be written.
    """

    store: StoreBase
    workflow_id: str
    claims: ClaimChecker
    clock: Clock
    secrets: KnownSecrets
    is_plan: bool = False
    _index: ResultIndex = attrs.field(init=False)
    _is_fresh: bool = attrs.field(init=False, default=False)
    _refreshing: asyncio.Lock = attrs.field(init=False, factory=asyncio.Lock)
    _sources: dict[str, tuple[CheckpointData, dict[str, StepResult]]] = attrs.field(init=False, factory=dict)
    _warned: set[str] = attrs.field(init=False, factory=set)
    _own: dict[str, list[StepResult]] = attrs.field(init=False, factory=dict)
    _own_results: Sequence[StepResult] = attrs.field(init=False, default=())
    _own_count: int = attrs.field(init=False, default=0)

    def __attrs_post_init__(self) -> None:
        self._index = ResultIndex(self.store, not self.is_plan and self.store.has(Ability.INDEX))

    async def find(
        self, step: Step[Any], path: str, own: Sequence[StepResult], counts: Callable[[str], bool] = bool
    ) -> Cached | None:
        """Return a result that a step can take; None if the step must run.

        Args:
            step: the step.
            path: its path.
            own: the list of results in the run's own history, which grows.
            counts: returns whether the result of a path in `own` may be taken.
        """
        key = self._make_key(step)
        if not key:
            return None
        for result in self._index_own(own).get(key, ()):
            if result.path != path and counts(result.path):
                cached = await self._check_result(step, path, self.workflow_id, result, {})
                if cached is not None:
                    return cached
        try:
            was_fresh = self._is_fresh  # read before the search, which may miss what a refresh adds meanwhile
            try:
                cached = await self._look_up(step, path, key)
            except FlowckptError:
                if was_fresh:
                    raise
                cached = None  # the refresh reports the reason, or builds an index in memory
            if cached is None and not was_fresh:
                async with self._refreshing:  # all members of a map find nothing at the same time
                    if not self._is_fresh:
                        await self._index.refresh(self.workflow_id)
                        self._is_fresh = True
                cached = await self._look_up(step, path, key)
        except FlowckptError as error:  # an unreadable cache only costs time
            self._warn_once(f"step {step.name}: no result of another run is taken: {error.message}")
            return None
        return cached

    def _index_own(self, results: Sequence[StepResult]) -> Mapping[str, list[StepResult]]:
        """Return the run's own results by the key of their call."""
        if results is not self._own_results or len(results) < self._own_count:
            self._own, self._own_results, self._own_count = {}, results, 0
        for index in range(self._own_count, len(results)):
            result = results[index]
            if is_source(result) and (key := call_key(result.step_type, result)):
                self._own.setdefault(key, []).append(result)
        self._own_count = len(results)
        return self._own

    def _make_key(self, step: Step[Any]) -> str:
        passed = KnownSecrets()
        call = identify(step.action, self.secrets, step.modifiers.version)
        plain = identify(step.action, passed, step.modifiers.version)
        if passed.is_any or plain.arguments != call.arguments:
            why = "its arguments contain a secret, and secrets are not recorded for a comparison"
        elif key := call_key(step.action.step_type, call):
            return key
        else:
            unknown = [name for name, value in call.arguments.items() if is_incomplete(value)]
            why = (
                f"the argument {unknown[0]!r} cannot be compared" if unknown else "the code of its function is unknown"
            )
        self._warn_once(f"step {step.name}: .cache() takes no result: {why}")
        return ""

    def _warn_once(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            _log.warning("run %s: %s", self.workflow_id, text)

    async def _look_up(self, step: Step[Any], path: str, key: str) -> Cached | None:
        for run, its_path, _, _ in await self._index.notes(key):
            if run == self.workflow_id:
                continue
            latest, results = await self._load_source(run)
            result = results.get(its_path)
            if latest is None or result is None or not is_source(result) or IMPORTED in latest.metadata:
                continue  # removed, rolled back, or from an imported run, which anyone may have made
            cached = await self._check_result(step, path, run, result, latest.metadata)
            if cached is not None:
                return cached
        return None

    async def _load_source(self, run: str) -> tuple[CheckpointData | None, Mapping[str, StepResult]]:
        if run not in self._sources:
            try:
                latest = await self.store.load_latest(run)
            except FlowckptError as error:
                _log.info("nothing is taken from run %s: %s", run, error.message)
                latest = None
            if latest is None:
                return None, {}
            if len(self._sources) >= _MOST_SOURCES:
                del self._sources[next(iter(self._sources))]
            self._sources[run] = latest, {result.path: result for result in latest.step_results}
        return self._sources[run]

    async def _check_result(
        self, step: Step[Any], path: str, run: str, result: StepResult, metadata: Mapping[str, Any]
    ) -> Cached | None:
        """Return a found result if it belongs to the same call and is valid now."""
        moment, limit = ended_at(result), step.modifiers.cache_seconds or 0.0
        if moment is None or not (isinf(limit) or self.clock.now() - moment <= timedelta(seconds=limit)):
            return None
        taken = attrs.evolve(result, path=path, name=step.name)
        judge = Judge(ResumePolicy(), secrets=self.secrets)
        judge.packages.update(find_moved_versions(metadata))
        try:
            report = None
            if taken.evidence is not None:
                report = judge.reports[path] = await self.claims.verify_again(step, taken)
            if judge.reasons(step, taken):
                return None
            value, tree = restore_value(step, taken), plain_tree(result.held_output, path)
            refuse_secrets(tree, self.secrets, path)
            if not meets_demands(step, taken, value):
                return None
        except FlowckptError as error:
            _log.info("step %s of run %s is not taken: %s", result.path, run, error.message)
            return None
        source = result.source or {"workflow_id": run, "path": result.path, "ended_at": encode_time(moment)}
        return Cached(taken, value, tree, report, source, run, result.path)
