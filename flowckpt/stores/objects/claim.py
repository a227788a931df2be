"""Becoming the owner of a run: the claim of its next attempt, and the end of all attempts below it.

The order of a claim is the whole safety of it:

1. the claim, record 0 of attempt N + 1, is created; of two claimers one finds it taken;
2. the attempts are listed again: one with a higher number has overtaken this claim, which is then given up;
3. each attempt below gets an end at its next free number. Its writer creates its records one after the other, and
   only where there is none, so it cannot pass that end. This continues downwards until an attempt that has a record,
   because the process that wrote that record had ended all below it first;
4. only then the run is read. What a former owner acknowledged stands before the end of its attempt.

No clock has a part in this, and no message is needed: a former owner finds out when it saves.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from datetime import datetime
from itertools import count

import attrs

from flowckpt.core.codec.results import encode_time
from flowckpt.core.records.checkpoint import SCHEMA_VERSION
from flowckpt.core.system.process import ProcessIdentity
from flowckpt.errors import CheckpointStorageError, FencedError, RunLockedError
from flowckpt.stores.log.segment import START, chain_line
from flowckpt.stores.objects.attempt import (
    FENCED,
    RELEASED,
    AttemptEnd,
    AttemptTail,
    end_in,
    holder_in,
    holder_of,
    holds_now,
    is_end,
    is_mark,
    tail_of,
)
from flowckpt.stores.objects.bucket import Bucket
from flowckpt.stores.objects.layout import (
    MOST,
    AttemptKeys,
    InflationError,
    RunKeys,
    packed,
    run_key,
    run_keys,
    unpacked,
)
from flowckpt.stores.runs_base import refusal_of_field

_PATIENCE = 100
_TRIES, _LEAP = 4, 64
"""After so many numbers that a busy writer has taken, an end is put so far ahead that it runs into it."""


@attrs.frozen
class Claimed:
    """An attempt that was claimed, with all below it ended.

    Attributes:
        keys: the keys of the run, with the attempts below this one.
        attempt: the attempt.
        digest: the digest of the claim, which the first record carries on.
        line: the claim itself.
        token: the random name of the claimer.
    """

    keys: RunKeys
    attempt: int
    digest: bytes
    line: bytes
    token: str


@attrs.frozen
class Claimer:
    """A claimer, and its purpose.

    Attributes:
        workflow_id: the run.
        process: the claimer's process.
        lease_seconds: how long it holds the run without a heartbeat.
        now: the time by its clock, for people.
        at_least: the lowest number that the attempt may have.
        take_over: whether to take the run from a living owner.
        began_at: when the attempt began, where that is not now.
        gives_way: whether to leave the run to one that claimed it in the same moment, with a lower number.
        after: the claimer's own attempt, which ends with this claim and must be the newest; 0 if it has none.
    """

    workflow_id: str
    process: ProcessIdentity
    lease_seconds: float
    now: datetime
    at_least: int = 1
    take_over: bool = False
    began_at: datetime | None = None
    gives_way: bool = False
    after: int = 0

    def claim(self, bucket: Bucket) -> Claimed:
        """Claim the next attempt, and end all below it.

        Raises:
            RunLockedError: the run has a living owner, or another process claimed it at the same time.
            CheckpointStorageError: a request failed.
        """
        for _ in range(_PATIENCE):
            keys = look(bucket, self.workflow_id)
            newest = keys.attempts[-1] if keys.attempts else 0
            if self.after and newest != self.after:
                raise FencedError(self.workflow_id, attempt=self.after, newest_attempt=newest or None)
            ended: dict[int, AttemptTail] = {}
            if newest:
                tail = tail_of(bucket, keys.at(newest), self.workflow_id)
                if tail.is_over:
                    finish_clearing(bucket, keys, newest, self.workflow_id)
                    continue
                if tail.end is not None:
                    ended[newest] = tail
                elif not self.take_over and not self.after:
                    self._check_free(bucket, keys.at(newest), tail)
            claimed = self.create(bucket, keys, max(newest + 1, self.at_least))
            try:
                below = self._below(bucket, claimed)
                if self.gives_way and not set(below or ()) <= set(keys.attempts):
                    below = None
                is_ours = below is not None and self._end_all(bucket, claimed, below, ended)
            except BaseException:
                give_up(bucket, claimed.keys.at(claimed.attempt), self.workflow_id)
                raise
            if is_ours:
                return attrs.evolve(claimed, keys=attrs.evolve(claimed.keys, attempts=tuple(below or ())))
            give_up(bucket, claimed.keys.at(claimed.attempt), self.workflow_id)
        raise CheckpointStorageError(
            f"run {self.workflow_id!r} is being cleared over and over",
            workflow_id=self.workflow_id,
            operation="acquire",
        )

    def _check_free(self, bucket: Bucket, keys: AttemptKeys, tail: AttemptTail) -> None:
        holder = holder_of(bucket, keys, tail, self.workflow_id)
        if holder is not None and holds_now(bucket, holder, self.workflow_id):
            raise RunLockedError(self.workflow_id, holder=str(holder.owner))

    def create(self, bucket: Bucket, keys: RunKeys, attempt: int) -> Claimed:
        """Create the claim of an attempt, and nothing else; whether it holds is another question.

        Raises:
            RunLockedError: it is claimed.
            EncodingError: no attempt can have that number.
        """
        if attempt > MOST:
            raise refusal_of_field(OverflowError(f"attempt {attempt} is beyond {MOST}"))
        token = secrets.token_hex(16)
        began_at = self.began_at or self.now
        header = {
            "flowckpt": "segment",
            "schema_version": SCHEMA_VERSION,
            "workflow_id": self.workflow_id,
            "segment": attempt,
            "owner": {**attrs.asdict(self.process), "acquired_at": encode_time(self.now)},
            "created_at": encode_time(began_at),
            "lease_seconds": self.lease_seconds,
            "token": token,
        }
        line, digest = chain_line(json.dumps(header, separators=(",", ":"))[:-1].encode(), START)
        other = bucket.create(keys.at(attempt).record(0), line, self.workflow_id, "acquire")
        if other is not None:
            holder = holder_in(other, self.now)
            raise RunLockedError(self.workflow_id, holder=str(holder.owner) if holder else "another process")
        return Claimed(keys, attempt, digest, line, token)

    def _below(self, bucket: Bucket, claimed: Claimed) -> list[int] | None:
        """Return the attempts below a claim; None where another claim has overtaken it, or the run was cleared."""
        found = look(bucket, self.workflow_id)
        if found.life != claimed.keys.life:
            return None
        higher = [attempt for attempt in found.attempts if attempt > claimed.attempt]
        if higher:
            keys = found.at(higher[-1])
            holder = holder_of(bucket, keys, tail_of(bucket, keys, self.workflow_id), self.workflow_id)
            if holder is not None:
                raise RunLockedError(self.workflow_id, holder=str(holder.owner))
            return None
        return [attempt for attempt in found.attempts if attempt < claimed.attempt]

    def _end_all(self, bucket: Bucket, claimed: Claimed, below: list[int], ended: Mapping[int, AttemptTail]) -> bool:
        """End the attempts below a claim; return whether the run is still there."""
        end = AttemptEnd(RELEASED if self.after else FENCED, encode_time(self.now), claimed.token)
        for attempt in reversed(below):
            keys = claimed.keys.at(attempt)
            tail = ended.get(attempt) or tail_of(bucket, keys, self.workflow_id)
            if tail.end is None:
                tail = _put_end(bucket, keys, tail, end, self.workflow_id)
            if tail.is_over:
                return False
            if tail.is_begun:
                break
        return True


def look(bucket: Bucket, workflow_id: str) -> RunKeys:
    """Return the keys of a run, as they are now."""
    run = run_key(workflow_id)
    return run_keys(run, bucket.names(run, workflow_id))


def give_up(bucket: Bucket, keys: AttemptKeys, workflow_id: str) -> None:
    """Remove a claim under which nothing was recorded. An end that another one has put there stays."""
    bucket.delete([keys.record(0), keys.alive], workflow_id, "release")


def _put_end(bucket: Bucket, keys: AttemptKeys, tail: AttemptTail, end: AttemptEnd, workflow_id: str) -> AttemptTail:
    """Put an end after the last record of an attempt, whose writer may be adding records just now."""
    body = packed(end.line())
    number = max(tail.number + 1, 1)
    is_marked = tail.is_marked
    for tries in count(1):
        other = bucket.create(keys.record(number), body, workflow_id, "acquire")
        if other is None:
            return AttemptTail(number, end, tail.last_sign, is_marked)
        content = unpacked(other)
        if is_end(content):
            return AttemptTail(number, end_in(content), tail.last_sign, is_marked)
        is_marked = is_marked or (number == 1 and is_mark(content))
        number += 1
        if tries == _TRIES:
            bucket.create(keys.record(number + _LEAP), body, workflow_id, "acquire")
    raise AssertionError("unreachable")


# The end of a run in a bucket: a tombstone first, then its objects.
#
# The tombstone is the end of the newest attempt, so a clear is fenced like a save. What stays for good is the word that
# this life of the run has ended, and the ends that fence writers which may still be asleep: some hundred bytes each. The
# numbers of a life are never used again; the run begins its next life with attempt 1.


def finish_clearing(bucket: Bucket, keys: RunKeys, last: int, workflow_id: str) -> None:
    """Remove what a cleared run has.

    Args:
        bucket: the bucket.
        keys: the keys of the run.
        last: the attempt that has the tombstone.
        workflow_id: the run, for errors.
    """
    bucket.create_all([(keys.cleared, lambda: b'{"flowckpt":"cleared"}\n')], workflow_id, "clear")
    for under in (keys.values, keys.signals):
        bucket.delete([each.key for each in bucket.objects(under, workflow_id)], workflow_id, "clear")
    sweep(bucket, [keys.at(attempt) for attempt in keys.attempts if attempt <= last], workflow_id)


def sweep_former(bucket: Bucket, keys: RunKeys, workflow_id: str) -> None:
    """Remove what the former lives of a run have left: attempts, and messages and values that came when these had ended.

    A life that has ended is not read, and nothing that is saved in a later one names anything in it. So this is safe
    beside the process that is at work, at any time.
    """
    sweep(bucket, list(keys.former), workflow_id)
    sweep_late(bucket, keys, workflow_id)


def sweep_late(bucket: Bucket, keys: RunKeys, workflow_id: str) -> None:
    """Remove the messages and values of former lives: they came late, or the process that cleared these died in the middle."""
    for under in (*keys.former_signals, *keys.former_values):
        bucket.delete([each.key for each in bucket.objects(under, workflow_id)], workflow_id, "clear")


def sweep_values(bucket: Bucket, keys: RunKeys, workflow_id: str) -> None:
    """Remove the large values of a life, where that has ended.

    Args:
        bucket: the bucket.
        keys: the keys of the run in that life.
        workflow_id: the run, for errors.
    """
    names = bucket.names(keys.run, workflow_id)
    if run_keys(keys.run, names).life > keys.life:
        bucket.delete([each.key for each in bucket.objects(keys.values, workflow_id)], workflow_id, "clear")


def sweep(bucket: Bucket, attempts: list[AttemptKeys], workflow_id: str) -> None:
    """Remove attempts of a life that has ended, in any state in which an earlier try may have left them.

    Args:
        bucket: the bucket.
        attempts: their keys.
        workflow_id: the run, for errors.
    """
    for keys in attempts:
        listed = [each.key for each in bucket.objects(keys.root, workflow_id)]
        kept = _fences(bucket, [key for key in listed if key.startswith(f"{keys.records}/")], workflow_id)
        bucket.delete([key for key in listed if key not in kept], workflow_id, "clear")


def _fences(bucket: Bucket, records: list[str], workflow_id: str) -> set[str]:
    """Return the ends that fence a writer which may still be asleep; ends are after all records."""
    kept = set()
    for key in reversed(records):
        try:
            content = unpacked(bucket.get(key, workflow_id) or b"")
            if not is_end(content):
                break
            if end_in(content).kind != RELEASED:
                kept.add(key)
        except (InflationError, ValueError, KeyError, TypeError):  # damaged, so it is kept, to be safe
            kept.add(key)
    return kept
