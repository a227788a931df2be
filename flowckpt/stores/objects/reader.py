"""Reads the runs in a bucket, without owning them and without writing anything."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from typing import Any, TypeVar

import attrs

from flowckpt.core.codec import decode
from flowckpt.core.codec.blob import Fetch
from flowckpt.core.records import Status
from flowckpt.core.records.listing import Owner, RunFilter, RunInfo
from flowckpt.core.records.wait import Signal
from flowckpt.core.system.clock import Clock
from flowckpt.core.system.numbers import pluralize
from flowckpt.core.system.process import ProcessIdentity
from flowckpt.errors import (
    CheckpointCorruptedError,
    CheckpointNotFoundError,
    CheckpointStorageError,
    DecodingError,
    FlowckptError,
)
from flowckpt.stores.base import Finding, RunSurvey, make_ok_finding, make_survey
from flowckpt.stores.log.image import LoadedRun, LogRuns, RunImage, make_run_info, read_run
from flowckpt.stores.objects.attempt import (
    AttemptContent,
    AttemptTail,
    ChangedMeanwhileError,
    corrupt_object_error,
    list_attempt,
    parse_claim,
    parse_holder,
    read_attempt,
    read_holder,
    read_tail,
    starts_generation,
)
from flowckpt.stores.objects.bucket import Bucket
from flowckpt.stores.objects.claim import read_keys, read_keys_at
from flowckpt.stores.objects.layout import RUNS, AttemptKeys, InflationError, RunKeys, run_key, unpack
from flowckpt.stores.objects.run_writer import ObjectRunWriter
from flowckpt.stores.objects.signals import read_signals

# The content of a run's attempts, read on demand: from the newest, together with some below it.


_AT_ONCE = 16


@attrs.define(eq=False, repr=False)
class Contents:
    """Reads the attempts of a run, each once.

    An attempt ends before a later one continues it. If its end seems missing, it was read too early and may have grown
    since; it is read again, but only once, because the end may be lost.

    Attributes:
        bucket: the bucket.
        workflow_id: the run.
        keys: its keys.
        with_bundles: whether to read bundles instead of the records in them.
        cache: a cache of read attempts, by their root.
        begun: the newest attempt that has a record, once known.
    """

    bucket: Bucket
    workflow_id: str
    keys: RunKeys
    with_bundles: bool
    cache: dict[str, AttemptContent]
    begun: int = 0
    _final: set[int] = attrs.field(init=False, factory=set)

    def load(self, number: int) -> AttemptContent:
        """Return the content of an attempt.

        Args:
            number: the attempt.

        Raises:
            ChangedMeanwhileError: it was removed while it was being read.
        """
        root = self.place(number)
        content = self.cache.get(root)
        if content is None:
            self._read_batch(number)
        elif content.end is None and number < self.begun and number not in self._final:
            self.cache[root] = self._read(number)
        if number < self.begun:
            self._final.add(number)
        return self.cache[root]

    def text(self, number: int) -> bytes:
        """Return an attempt as the text of a segment; see `load`."""
        return self.load(number).text

    def check(self, number: int) -> None:
        """Raise if an attempt cannot be read to its end.

        Raises:
            CheckpointCorruptedError: a record is missing or unreadable.
        """
        damage = self.load(number).damage
        if damage is not None:
            raise damage

    def place(self, number: int) -> str:
        """Return the place of an attempt, for messages."""
        return self.keys.at(number).root

    def _read_batch(self, number: int) -> None:
        """Read an attempt and, because most runs continue attempt by attempt, as many below it as were read so far."""
        lower = [each for each in self.keys.attempts if each <= number and self.place(each) not in self.cache]
        batch = lower[-min(len(self.cache) + 1, _AT_ONCE) :]
        self.cache.update(zip(map(self.place, batch), self.bucket.map(self._read, batch), strict=True))

    def _read(self, number: int) -> AttemptContent:
        return read_attempt(self.bucket, self.keys.at(number), self.workflow_id, with_bundles=self.with_bundles)


T = TypeVar("T")
_PATIENCE = 100
_log = logging.getLogger("flowckpt")


@attrs.frozen
class RunRead(LoadedRun):
    """A run that was read.

    Attributes:
        keys: its keys.
    """

    keys: RunKeys


class ObjectReader(LogRuns[ObjectRunWriter]):
    """Reads the runs in a bucket, without owning them and without writing anything.

    Args:
        clock: the time, for showing leases of other machines.
        seconds: the interval of an owner's heartbeats.
    """

    def __init__(self, bucket: Bucket, clock: Clock, seconds: float) -> None:
        super().__init__(seconds)
        self.bucket = bucket
        self._clock = clock

    @property
    def place(self) -> str:
        """The bucket, for messages."""
        return str(self.bucket)

    def read(
        self,
        workflow_id: str,
        *,
        keys: RunKeys | None = None,
        below: int | None = None,
        with_bundles: bool = True,
        cache: dict[str, AttemptContent] | None = None,
    ) -> RunRead:
        """Read a run, or its attempts below a number; empty if it was cleared or has no objects.

        Args:
            workflow_id: the run.
            keys: its keys, if they are known and do not change.
            below: read it as it was before this attempt.
            with_bundles: whether to read bundles instead of the records in them.
            cache: a cache of read attempts, for reading the run as each attempt left it.
        """

        def read_once() -> RunRead:
            listed = keys or read_keys(self.bucket, workflow_id)
            fetch = self._make_fetch(workflow_id, listed)
            contents = Contents(self.bucket, workflow_id, listed, with_bundles, {} if cache is None else cache)
            try:
                return RunRead(self._make_image(contents, below, fetch), fetch, listed)
            except CheckpointCorruptedError as error:
                if keys is None and self._is_over(listed, workflow_id):  # the missing objects were cleared, not damaged
                    raise ChangedMeanwhileError from error
                raise

        return self._retry(workflow_id, "read", read_once)

    def _make_image(self, contents: Contents, below: int | None, fetch: Fetch) -> RunImage:
        workflow_id, attempts = contents.workflow_id, contents.keys.attempts
        numbers = [number for number in attempts if below is None or number < below]
        for number in reversed(attempts):
            if contents.load(number).is_ignored:
                return RunImage(workflow_id, is_cleared=True)
            if contents.load(number).is_begun or contents.load(number).damage:
                contents.begun = number
                break
        while numbers and not contents.load(numbers[-1]).is_begun:
            contents.check(numbers.pop())
        if numbers:
            contents.check(numbers[-1])
        try:
            image = read_run(workflow_id, numbers, contents.text, fetch, place=contents.place)
        except CheckpointCorruptedError as error:
            for number in numbers:  # damaged in a part that a later one continues
                if error.location.startswith(contents.place(number)):
                    contents.check(number)
            raise
        for notice in image.notices:  # a file may be torn; an object is complete or damaged
            raise corrupt_object_error(notice.partition(":")[0], workflow_id, "a record does not match its checksum")
        return image

    def load_run(self, workflow_id: str, attempt: int | None = None) -> RunRead:
        """Read a run, as it is or as an attempt left it."""
        return self.read(workflow_id, below=None if attempt is None else attempt + 1)

    def attempts(self, workflow_id: str) -> list[int]:
        """Return the numbers of the attempts that wrote something, ascending."""

        def read_once() -> list[int]:
            keys = read_keys(self.bucket, workflow_id)

            def tail_at(number: int) -> AttemptTail:
                try:
                    return read_tail(self.bucket, keys.at(number), workflow_id)
                except CheckpointCorruptedError:  # its end is damaged: reading the attempt reports that
                    return AttemptTail(number=1, last_sign=None)

            tails = dict(zip(keys.attempts, self.bucket.map(tail_at, keys.attempts), strict=True))
            if not all(tail.is_begun for tail in tails.values()) and self._is_over(keys, workflow_id):
                raise ChangedMeanwhileError
            last_ignored = max((number for number, tail in tails.items() if tail.is_ignored), default=0)
            begun = [number for number, tail in tails.items() if tail.is_begun and number > last_ignored]
            return self._select_generation(keys, workflow_id, begun)

        return self._retry(workflow_id, "read", read_once)

    def owner(self, workflow_id: str) -> Owner | None:
        """Return the live owner of a run."""

        def read_once() -> Owner | None:
            keys = read_keys(self.bucket, workflow_id)
            if not keys.attempts:
                return None
            newest = keys.at(keys.attempts[-1])
            return self._read_owner(newest, read_tail(self.bucket, newest, workflow_id), workflow_id)

        return self._retry(workflow_id, "read", read_once)

    def live_note(self, workflow_id: str) -> bytes | None:
        """Return the live note of a run: the content of the heartbeat of its newest attempt."""
        keys = read_keys(self.bucket, workflow_id)
        content = self.bucket.get(keys.at(keys.attempts[-1]).alive, workflow_id) if keys.attempts else None
        return content or None

    def _select_generation(self, keys: RunKeys, workflow_id: str, attempts: list[int]) -> list[int]:
        """Return the attempts of the current generation; a crash may have left earlier ones."""
        firsts = [keys.at(number).record(1) for number in attempts[1:]]
        records = zip(attempts[1:], self.bucket.get_all(firsts, workflow_id), strict=True)
        starts = [number for number, first in records if starts_generation(first)]
        return [number for number in attempts if number >= max(starts, default=0)]

    def claimed_by(self, workflow_id: str, attempt: int) -> ProcessIdentity | None:
        """Return the process named by the claim of an attempt."""
        keys = read_keys(self.bucket, workflow_id).at(attempt)
        holder = parse_holder(self.bucket.get(keys.record(0), workflow_id), datetime.now(UTC))
        return None if holder is None else holder.owner.process

    def last_seen(self, workflow_id: str, attempt: int) -> datetime | None:
        """Return the time of an attempt's newest object."""

        def read_once() -> datetime | None:
            keys = read_keys(self.bucket, workflow_id)
            if attempt not in keys.attempts:
                return None
            return list_attempt(self.bucket, keys.at(attempt), workflow_id).last_sign

        return self._retry(workflow_id, "read", read_once)

    def _estimate_server_time(self) -> datetime:
        """Return an estimate of the server's time: this machine's, or a later time proved by the objects.

        A machine whose clock is slow would otherwise take a dead owner elsewhere for alive.
        """
        return max(self._clock.now(), self.bucket.estimate_earliest_time())

    def _read_owner(self, keys: AttemptKeys, tail: AttemptTail, workflow_id: str) -> Owner | None:
        holder = read_holder(self.bucket, keys, tail, workflow_id)
        return holder.owner if holder is not None and holder.holds(self._estimate_server_time()) else None

    def survey_runs(self, wanted: RunFilter | None = None) -> RunSurvey:
        """Return the selected runs, and the damaged ones."""
        described = list(self.bucket.map(self._describe_or_report, list_run_keys(self.bucket)))
        return make_survey(described, [each for each in described if isinstance(each, Finding)], wanted)

    def _describe_or_report(self, run: str) -> RunInfo | Finding | None:
        try:
            return self._describe(run)
        except (FlowckptError, ValueError, LookupError, TypeError) as error:
            detail = error.message if isinstance(error, FlowckptError) else f"{type(error).__name__}: {error}"
            return Finding(getattr(error, "workflow_id", "") or run, _severity(error), detail)

    def describe_run(self, workflow_id: str) -> RunInfo | None:
        """Return one run as listed; None if it does not exist."""
        return self._describe(run_key(workflow_id))

    def _describe(self, run: str) -> RunInfo | None:
        return self._retry(run, "list", partial(self._describe_once, run))

    # A listed run is described by the end of its newest attempt if its owner recorded the state there, else by a few
    # records. That takes three requests for a released run, and up to eight for one that is running or has crashed; the
    # runs of a list are read sixteen at a time.

    def _describe_once(self, run: str) -> RunInfo | None:
        """Return a run as listed, by its key; None if it has no checkpoint.

        Raises:
            CheckpointCorruptedError: a needed record is damaged.
            ChangedMeanwhileError: an object was removed meanwhile.
        """
        keys = read_keys_at(self.bucket, run)
        owner = None
        for attempt in reversed(keys.attempts):
            at = keys.at(attempt)
            tail = read_tail(self.bucket, at, run)
            if tail.is_ignored:
                return None
            if attempt == keys.attempts[-1]:
                owner = self._read_owner(at, tail, run)
            if tail.is_begun:
                try:
                    info = _parse_summary(tail) or self._read_summary(at, tail)
                except (DecodingError, InflationError, LookupError, TypeError, ValueError) as error:
                    raise corrupt_object_error(at.root, run, f"it cannot be described: {error}") from error
                return None if info is None else info.with_owner(owner)
        return None

    def _read_summary(self, at: AttemptKeys, tail: AttemptTail) -> RunInfo | None:
        last_number = tail.number - (tail.end is not None)
        wanted = [at.record(0), at.record(1), at.record(last_number)]
        claim, first, last = self.bucket.get_all(wanted, at.run)
        if claim is None or first is None or last is None:
            raise ChangedMeanwhileError(at.root)
        document = parse_claim(claim)
        if document is None:
            raise corrupt_object_error(at.record(0), at.run, "the claim cannot be read")
        workflow_id = str(document["workflow_id"])
        head, tip = _parse_last_line(first), _parse_last_line(last)
        if "sequence" not in head or "sequence" not in tip:  # after a deletion, only the whole run names the newest one
            return self.read(workflow_id).info()
        adoption = json.loads(unpack(first).partition(b"\n")[0])
        started_at = datetime.fromisoformat(adoption.get("started_at") or head["saved_at"])
        return make_run_info(workflow_id, at.attempt, started_at, head, tip)

    def signals(self, workflow_id: str) -> list[Signal]:
        """Return the messages for a run in the order of sending."""
        return read_signals(self.bucket, workflow_id)

    def check(self, workflow_id: str | None = None) -> list[Finding]:
        """Verify one run, or all."""
        if workflow_id is not None:
            findings = self._check_run(workflow_id)
            if not findings:
                raise CheckpointNotFoundError(workflow_id)
            return findings
        findings, runs = [], list_run_keys(self.bucket)
        for run in runs:
            workflow_id = read_run_id(self.bucket, run)
            if workflow_id is not None:
                findings += self._check_run(workflow_id)
            elif has_records(self.bucket, run):
                findings.append(Finding(run, "corrupt", "no claim names the run"))
        late = sum(self.bucket.map(partial(count_late_objects, self.bucket), runs))
        if late:
            detail = f"{pluralize(late, 'object')} of cleared runs arrived after the clear; 'flowckpt store prune' removes them"
            findings.append(Finding("", "notice", detail))
        return findings

    def _check_run(self, workflow_id: str) -> list[Finding]:
        try:
            written: dict[str, AttemptContent] = {}
            run = self.read(workflow_id, with_bundles=False, cache=written)
            image = run.image
            if image.is_cleared or not run.keys.attempts:
                return []
            cache: dict[str, AttemptContent] = {}  # read each object once, however many attempts continue it
            contents = {number: written.get(run.keys.at(number).root) for number in run.keys.attempts}
            starts = [number for number, content in contents.items() if content and content.is_generation]
            attempts = [number for number in run.keys.attempts if number >= max(starts, default=0)]
            for below in [*attempts[1:], None]:  # as each attempt left it, and through the bundles
                read = self.read(workflow_id, below=below, cache=cache)
                for index in read.image.checkpoints():
                    read.image.data(index, read.fetch)
            run.check_values()
            self.signals(workflow_id)
        except CheckpointNotFoundError:  # it was cleared meanwhile
            return []
        except FlowckptError as error:
            return [Finding(workflow_id, _severity(error), error.message)]
        if not image.newest:
            return []
        return [make_ok_finding(workflow_id, len(image.checkpoints()), len(image.history.results))]

    def _make_fetch(self, workflow_id: str, keys: RunKeys) -> Fetch:
        def fetch(digest: str, size: int) -> bytes:
            key = keys.value(digest)
            body = self.bucket.get(key, workflow_id)
            if body is None:
                if self._is_over(keys, workflow_id):
                    raise CheckpointNotFoundError(workflow_id, detail="it was cleared")
                raise corrupt_object_error(key, workflow_id, "a large value is missing")
            try:
                content = unpack(body, size)
            except InflationError as error:
                raise corrupt_object_error(key, workflow_id, f"a large value cannot be read: {error}") from error
            if len(content) != size or sha256(content).hexdigest() != digest:
                raise corrupt_object_error(key, workflow_id, "a large value does not match its digest")
            return content

        return fetch

    def _is_over(self, keys: RunKeys, workflow_id: str) -> bool:
        """Return whether a run's life has ended since it was listed: its end is recorded before anything is removed."""
        return read_keys(self.bucket, workflow_id).life != keys.life

    def _retry(self, workflow_id: str, operation: str, work: Callable[[], T]) -> T:
        """Repeat work if objects vanish meanwhile because the run was cleared or a claim withdrawn."""
        for _ in range(_PATIENCE):
            try:
                return work()
            except ChangedMeanwhileError:
                continue
        raise CheckpointStorageError(
            f"run {workflow_id!r} changes faster than it can be read: a listed object no longer exists",
            workflow_id=workflow_id,
            operation=operation,
        )


def list_run_keys(bucket: Bucket) -> list[str]:
    """Return the keys of all runs, including cleared ones."""
    return [f"{RUNS}/{name}" for name in bucket.list_names(RUNS, "")]


def read_run_id(bucket: Bucket, run: str) -> str | None:
    """Return the id of the run under a key; None if no claim names it, as after a clear."""
    keys = read_keys_at(bucket, run)
    for attempt in reversed(keys.attempts):
        claim = parse_claim(bucket.get(keys.at(attempt).record(0), run))
        if claim is not None and isinstance(claim.get("workflow_id"), str):
            return str(claim["workflow_id"])
    return None


def has_records(bucket: Bucket, run: str) -> bool:
    """Return whether a run without a readable claim has records, so that its claim was lost."""
    keys = read_keys_at(bucket, run)
    return any(read_tail(bucket, keys.at(attempt), run).is_begun for attempt in keys.attempts)


def count_late_objects(bucket: Bucket, run: str) -> int:
    """Return how many large values and messages arrived in a run's former lives after their end."""
    keys = read_keys_at(bucket, run)
    return sum(len(bucket.list_keys(prefix, run)) for prefix in keys.late)


def _parse_summary(tail: AttemptTail) -> RunInfo | None:
    summary = tail.end.run if tail.end is not None else None
    if summary is None:
        return None
    return RunInfo(
        summary["workflow_id"],
        summary["workflow_name"],
        Status(summary["status"]),
        summary["attempt"],
        datetime.fromisoformat(summary["started_at"]),
        datetime.fromisoformat(summary["updated_at"]),
        summary["steps"],
        decode(summary["metadata"]),
    )


def _parse_last_line(body: bytes) -> Mapping[str, Any]:
    record = json.loads(unpack(body).rstrip(b"\n").rpartition(b"\n")[2])
    if not isinstance(record, dict):
        raise TypeError("a record is not a JSON object")
    return record


def _severity(error: Exception) -> str:
    return "failed" if isinstance(error, CheckpointStorageError) else "corrupt"
