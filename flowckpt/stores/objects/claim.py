"""Becoming the owner of a run: the claim of its next attempt, and the end of all attempts below it.

The safety of a claim depends only on this order:

1. the claim, record 0 of attempt N + 1, is created; of two claimers, one finds it taken;
2. the attempts are listed again: if one has a higher number, it has overtaken this claim, which is then withdrawn;
3. each attempt below gets an end at its next free number. Its writer creates its records one after the other, and
   only if they do not exist, so it cannot pass that end. This continues downwards to the first attempt that has a
      record, because the process that wrote that record had ended all attempts below it first;
4. only then the run is read. Everything that a previous owner acknowledged is before the end of its attempt.

No clock and no message is involved: a previous owner finds out when it saves.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from itertools import count

import attrs

from flowckpt.core.codec.results import encode_time
from flowckpt.core.system.process import ProcessIdentity
from flowckpt.errors import CheckpointStorageError, FencedError, RunLockedError
from flowckpt.stores.log.segment import make_header
from flowckpt.stores.objects.attempt import (
    FENCED,
    RELEASED,
    AttemptEnd,
    AttemptTail,
    chain_document,
    is_end,
    is_mark,
    is_still_held,
    parse_end,
    parse_holder,
    read_holder,
    read_tail,
)
from flowckpt.stores.objects.bucket import Bucket
from flowckpt.stores.objects.layout import (
    MOST,
    AttemptKeys,
    InflationError,
    RunKeys,
    pack,
    parse_run_keys,
    run_key,
    unpack,
)
from flowckpt.stores.runs_base import as_encoding_error

_PATIENCE = 100
_TRIES, _LEAP = 4, 64
"""After losing this many numbers to a busy writer, the end is put this far ahead of it."""


@attrs.frozen
class ClaimedAttempt:
    """A claimed attempt; all attempts below it have ended.

    Attributes:
        keys: the keys of the run, with the attempts below this one.
        attempt: the attempt.
        digest: the digest of the claim, which the first record continues.
        line: the claim itself.
        token: the random name of the claimer.
    """

    keys: RunKeys
    attempt: int
    digest: bytes
    line: bytes
    token: str

    @property
    def attempt_keys(self) -> AttemptKeys:
        """The keys of the attempt."""
        return self.keys.at(self.attempt)


@attrs.frozen
class Claimer:
    """Claims attempts of a run.

    Attributes:
        bucket: the bucket.
        workflow_id: the run.
        process: the claimer's process.
        lease_seconds: how long it holds the run without a heartbeat.
        now: the time by its clock, for people.
        at_least: the lowest number for the attempt.
        take_over: whether to take the run from a live owner.
        began_at: when the attempt started, if not now.
        gives_way: whether to yield to a simultaneous claim with a lower number.
        after: the claimer's own attempt, which ends with this claim and must be the newest; 0 if it has none.
    """

    bucket: Bucket
    workflow_id: str
    process: ProcessIdentity
    lease_seconds: float
    now: datetime
    at_least: int = 1
    take_over: bool = False
    began_at: datetime | None = None
    gives_way: bool = False
    after: int = 0

    def claim(self) -> ClaimedAttempt:
        """Claim the next attempt, and end all below it.

        Raises:
            RunLockedError: the run has a live owner, or another process claimed it at the same time.
            CheckpointStorageError: a request failed.
        """
        for _ in range(_PATIENCE):
            keys = read_keys(self.bucket, self.workflow_id)
            newest = keys.attempts[-1] if keys.attempts else 0
            if self.after and newest != self.after:
                raise FencedError(self.workflow_id, attempt=self.after, newest_attempt=newest or None)
            ended: dict[int, AttemptTail] = {}
            if newest:
                tail = self._read_tail(keys.at(newest))
                if tail.is_over:
                    finish_clearing(self.bucket, keys, newest, self.workflow_id)
                    continue
                if tail.end is not None:
                    ended[newest] = tail
                elif not self.take_over and not self.after:
                    self._check_free(keys.at(newest), tail)
            claimed = self.create(keys, max(newest + 1, self.at_least))
            with withdrawn_on_error(self.bucket, claimed, self.workflow_id):
                below = self._list_below(claimed)
                if self.gives_way and not set(below or ()) <= set(keys.attempts):
                    below = None
                if below is not None and self._end_all(claimed, below, ended):
                    return attrs.evolve(claimed, keys=attrs.evolve(claimed.keys, attempts=tuple(below)))
            withdraw_claim(self.bucket, claimed.attempt_keys, self.workflow_id)
        raise CheckpointStorageError(
            f"run {self.workflow_id!r} is cleared again and again by another process",
            workflow_id=self.workflow_id,
            operation="acquire",
        )

    def _read_tail(self, keys: AttemptKeys) -> AttemptTail:
        return read_tail(self.bucket, keys, self.workflow_id)

    def _check_free(self, keys: AttemptKeys, tail: AttemptTail) -> None:
        holder = read_holder(self.bucket, keys, tail, self.workflow_id)
        if holder is not None and is_still_held(self.bucket, holder, self.workflow_id):
            raise RunLockedError(self.workflow_id, holder=str(holder.owner))

    def create(self, keys: RunKeys, attempt: int) -> ClaimedAttempt:
        """Create the claim of an attempt, without checking whether the claim holds.

        Raises:
            RunLockedError: the attempt is already claimed.
            EncodingError: the number is too large for an attempt.
        """
        if attempt > MOST:
            raise as_encoding_error(OverflowError(f"attempt {attempt} is beyond {MOST}"))
        token = secrets.token_hex(16)
        header = {
            **make_header(self.workflow_id, attempt, self.process, self.now),
            "created_at": encode_time(self.began_at or self.now),
            "lease_seconds": self.lease_seconds,
            "token": token,
        }
        line, digest = chain_document(header)
        other = self.bucket.create(keys.at(attempt).record(0), line, self.workflow_id, "acquire")
        if other is not None:
            holder = parse_holder(other, self.now)
            raise RunLockedError(self.workflow_id, holder=str(holder.owner) if holder else "another process")
        return ClaimedAttempt(keys, attempt, digest, line, token)

    def _list_below(self, claimed: ClaimedAttempt) -> list[int] | None:
        """Return the attempts below a claim; None if another claim has overtaken it, or the run was cleared."""
        listed = read_keys(self.bucket, self.workflow_id)
        if listed.life != claimed.keys.life:
            return None
        if listed.attempts and listed.attempts[-1] > claimed.attempt:
            keys = listed.at(listed.attempts[-1])
            holder = read_holder(self.bucket, keys, self._read_tail(keys), self.workflow_id)
            if holder is not None:
                raise RunLockedError(self.workflow_id, holder=str(holder.owner))
            return None
        return [attempt for attempt in listed.attempts if attempt < claimed.attempt]

    def _end_all(self, claimed: ClaimedAttempt, below: list[int], ended: Mapping[int, AttemptTail]) -> bool:
        """End the attempts below a claim; return whether the run still exists."""
        end = AttemptEnd(RELEASED if self.after else FENCED, encode_time(self.now), claimed.token)
        for attempt in reversed(below):
            keys = claimed.keys.at(attempt)
            tail = ended.get(attempt) or self._read_tail(keys)
            if tail.end is None:
                tail = _put_end(self.bucket, keys, tail, end, self.workflow_id)
            if tail.is_over:
                return False
            if tail.is_begun:
                break
        return True


def read_keys(bucket: Bucket, workflow_id: str) -> RunKeys:
    """List the current keys of a run."""
    return read_keys_at(bucket, run_key(workflow_id), workflow_id)


def read_keys_at(bucket: Bucket, run: str, workflow_id: str = "") -> RunKeys:
    """List the current keys of the run with a key; its id is for errors, and is unknown in lists."""
    return parse_run_keys(run, bucket.list_names(run, workflow_id or run))


def withdraw_claim(bucket: Bucket, keys: AttemptKeys, workflow_id: str) -> None:
    """Remove a claim without records. An end put there by another process stays."""
    bucket.delete([keys.record(0), keys.alive], workflow_id, "release")


@contextmanager
def withdrawn_on_error(bucket: Bucket, claimed: ClaimedAttempt, workflow_id: str) -> Iterator[None]:
    """Remove a claim without records if the block raises."""
    try:
        yield
    except BaseException:
        withdraw_claim(bucket, claimed.attempt_keys, workflow_id)
        raise


def _put_end(bucket: Bucket, keys: AttemptKeys, tail: AttemptTail, end: AttemptEnd, workflow_id: str) -> AttemptTail:
    """Put an end after the last record of an attempt, whose writer may still be adding records."""
    body = pack(end.line())
    number = max(tail.number + 1, 1)
    is_marked = tail.is_marked
    for tries in count(1):
        other = bucket.create(keys.record(number), body, workflow_id, "acquire")
        if other is None:
            return AttemptTail(number, tail.last_sign, end=end, is_marked=is_marked)
        content = unpack(other)
        if is_end(content):
            return AttemptTail(number, tail.last_sign, end=parse_end(content), is_marked=is_marked)
        is_marked = is_marked or (number == 1 and is_mark(content))
        number += 1
        if tries == _TRIES:
            bucket.create(keys.record(number + _LEAP), body, workflow_id, "acquire")
    raise AssertionError("unreachable")


# The end of a run in a bucket: a tombstone first, then its objects.
#
# The tombstone is the end of the newest attempt, so a clear is fenced like a save. Two things stay permanently: the mark that
# this life of the run has ended, and the ends that fence writers which may still be suspended: some hundred bytes each. The
# numbers of a life are never used again; the run starts its next life with attempt 1.


def finish_clearing(bucket: Bucket, keys: RunKeys, last: int, workflow_id: str) -> None:
    """Remove the objects of a cleared run.

    Args:
        bucket: the bucket.
        keys: the keys of the run.
        last: the attempt with the tombstone.
        workflow_id: the run, for errors.
    """
    bucket.create_all([(keys.cleared, lambda: b'{"flowckpt":"cleared"}\n')], workflow_id, "clear")
    for prefix in (keys.values, keys.signals):
        bucket.delete_under(prefix, workflow_id)
    sweep(bucket, [keys.at(attempt) for attempt in keys.attempts if attempt <= last], workflow_id)


def sweep_former(bucket: Bucket, keys: RunKeys, workflow_id: str) -> None:
    """Remove the remains of a run's former lives: attempts, and messages and values that came too late.

    An ended life is never read, and later lives refer to nothing in it. So this is safe at any time, even while the run has
    an owner.
    """
    sweep(bucket, list(keys.former), workflow_id)
    sweep_late(bucket, keys, workflow_id)


def sweep_late(bucket: Bucket, keys: RunKeys, workflow_id: str) -> None:
    """Remove messages and values of former lives that came late, or that an interrupted clear left."""
    for prefix in keys.late:
        bucket.delete_under(prefix, workflow_id)


def sweep_values(bucket: Bucket, keys: RunKeys, workflow_id: str) -> None:
    """Remove the large values of an ended life.

    Args:
        bucket: the bucket.
        keys: the keys of the run in that life.
        workflow_id: the run, for errors.
    """
    if read_keys_at(bucket, keys.run, workflow_id).life > keys.life:
        bucket.delete_under(keys.values, workflow_id)


def sweep(bucket: Bucket, attempts: list[AttemptKeys], workflow_id: str) -> None:
    """Remove attempts of an ended life, in any state that an earlier try may have left.

    Args:
        bucket: the bucket.
        attempts: their keys.
        workflow_id: the run, for errors.
    """
    for keys in attempts:
        listed = bucket.list_keys(keys.root, workflow_id)
        fences = _find_fences(bucket, [key for key in listed if key.startswith(f"{keys.records}/")], workflow_id)
        bucket.delete([key for key in listed if key not in fences], workflow_id, "clear")


def _find_fences(bucket: Bucket, records: list[str], workflow_id: str) -> set[str]:
    """Return the ends that fence a writer that may still be suspended; ends are after all records."""
    fences = set()
    for key in reversed(records):
        try:
            content = unpack(bucket.get(key, workflow_id) or b"")
            if not is_end(content):
                break
            if parse_end(content).kind != RELEASED:
                fences.add(key)
        except (InflationError, ValueError, KeyError, TypeError):  # damaged: keep it, to be safe
            fences.add(key)
    return fences
