"""Repair of a damaged run in a bucket: its objects are copied, then the damaged ones are replaced.

    claim the run ──► work out what is intact ──► copy all objects ──► put an end where an attempt is damaged

The copies are a store of their own, under `damaged/RUN-TIME`, so every command can look into them. What is intact is worked
out before anything is changed. A record that is damaged may be there again, in a bundle. After a crash in the middle, the
next repair does the rest.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from hashlib import sha256
from typing import TYPE_CHECKING

import attrs

from flowckpt.core.codec.blob import Fetch
from flowckpt.core.records import CheckpointData
from flowckpt.errors import CheckpointCorruptedError, CheckpointNotFoundError
from flowckpt.stores.base import Finding, refuse_failed
from flowckpt.stores.content import check_values
from flowckpt.stores.log.image import RunImage, read_run
from flowckpt.stores.log.segment import START, verify_line
from flowckpt.stores.objects.attempt import (
    CLEARED,
    FENCED,
    RELEASED,
    AttemptEnd,
    corrupt,
    end_in,
    is_end,
    is_mark,
    is_whole,
    mark_of,
    starts_generation,
)
from flowckpt.stores.objects.bucket import Bucket
from flowckpt.stores.objects.claim import Claimed, current_keys, give_up, sweep
from flowckpt.stores.objects.layout import (
    RUNS,
    AttemptKeys,
    InflationError,
    RunKeys,
    number_in,
    numbers_in,
    packed,
    unpacked,
)
from flowckpt.stores.objects.signals import read_signal
from flowckpt.stores.queries import DAMAGE, Loss, Repaired, unrepairable_error

if TYPE_CHECKING:
    from flowckpt.stores.objects.runs import ObjectRuns

DAMAGED = "damaged"
"""The prefix of damaged runs that were set aside."""
_ADOPTION = b'{"adopts":'


def repair_run(runs: ObjectRuns, workflow_id: str) -> Repaired:
    """Set aside the damaged parts of a run, and keep the rest; see `StoreBase.repair`.

    Args:
        runs: the runs of the store.
        workflow_id: the run.
    """
    aside = ""
    lost: list[Loss] = []
    keys = current_keys(runs.bucket, workflow_id)
    if not keys.attempts:
        raise CheckpointNotFoundError(workflow_id)
    if not _is_intact(runs.check(workflow_id)):
        repair = _Repair(runs, workflow_id, keys)
        aside, lost = repair.run(), repair.lost
        refuse_failed(runs.check(workflow_id))
    latest = runs.load_latest(workflow_id)
    if latest is None:
        raise CheckpointNotFoundError(workflow_id)
    count = sum(len(runs.list_attempt(workflow_id, attempt)) for attempt in runs.attempts(workflow_id))
    kept = f"{runs.bucket}/{aside}" if aside else ""
    return Repaired(workflow_id, kept, tuple(lost), count, len(latest.step_results), latest.checkpoint_id)


def _is_intact(findings: list[Finding]) -> bool:
    refuse_failed(findings)
    return all(each.severity == "ok" for each in findings)


@attrs.define
class _Attempt:
    """The intact part of an attempt.

    Attributes:
        keys: its keys.
        records: the content of its objects, by number; None if it cannot be unpacked.
        bundles: the content of its bundles, by key.
        lines: its intact records by number, the claim first.
        why: the damage of its first damaged record; empty if there is none.
    """

    keys: AttemptKeys
    records: Mapping[int, bytes | None]
    bundles: Mapping[str, bytes | None]
    lines: dict[int, bytes] = attrs.field(factory=dict)
    why: str = ""

    @property
    def text(self) -> bytes:
        """Its intact records as the text of a segment."""
        return b"".join(line for line in self.lines.values() if not is_mark(line))

    @property
    def is_begun(self) -> bool:
        """Whether it has an intact record besides its claim."""
        return len(self.lines) > 1

    def find_intact(self, lost_values: set[str]) -> None:
        """Follow the chain of digests from the claim, using any intact copy of each record."""
        self.lines, self.why = {}, ""
        spare = {line for body in self.bundles.values() for line in (body or b"").splitlines(keepends=True)}
        digest, number = START, 0
        last = max([*self.records, *((numbers_in(each) or (0, 0))[1] for each in self.bundles)], default=-1)
        while number <= last and not self.why:
            body = self.records.get(number)
            if body is not None and is_end(body):
                if not _is_sound_end(body):
                    self.why = "the end of the attempt does not match its checksum"
                elif any(at > number and not _is_fence(other) for at, other in self.records.items()):
                    self.why = "it is missing, but later ones exist"  # a claim has put an end in its place
                return
            if number == 1 and body is not None and is_mark(body):
                kept = body if is_whole(body) else mark_of(secrets.token_hex(16))
            else:
                kept, digest, self.why = _followed(body, digest, spare, lost_values)
            if kept:
                self.lines[number] = kept
            number += 1


@attrs.define
class _Repair:
    runs: ObjectRuns
    workflow_id: str
    keys: RunKeys
    lost: list[Loss] = attrs.field(init=False, factory=list)
    _aside: str = attrs.field(init=False, default="")
    _attempts: dict[int, _Attempt] = attrs.field(init=False, factory=dict)
    _dropped: dict[int, str] = attrs.field(init=False, factory=dict)
    _generation: int = attrs.field(init=False, default=0)

    @property
    def bucket(self) -> Bucket:
        return self.runs.bucket

    def run(self) -> str:
        """Repair the run; return the prefix of the set-aside copy."""
        claimed = self._claim()
        writer = self.runs.unread(self.workflow_id, claimed)
        self.runs.bring(self.workflow_id, writer)
        try:
            self.keys = claimed.keys
            self._find_intact()
            self._set_aside()
            sweep(
                self.bucket,
                [self.keys.at(each) for each in self._attempts if each < self._generation],
                self.workflow_id,
            )
            for number, attempt in self._attempts.items():
                if number >= self._generation:
                    self._apply(attempt)
            self._remove_values_and_messages()
        finally:
            self.runs.arriving.pop(self.workflow_id, None)
            give_up(self.bucket, claimed.keys.at(claimed.attempt), self.workflow_id)
        return self._aside

    def _claim(self) -> Claimed:
        """Claim the run, which ends all attempts; a damaged end is removed first."""
        newest = self._read(self.keys.attempts[-1])
        # An end after a gap has ended the attempt, too, so there is no owner to check.
        is_ended = bool(newest.records) and _is_any_end(newest.records[max(newest.records)])
        try:
            return self.runs.claim(self.workflow_id, take_over=is_ended)
        except CheckpointCorruptedError:
            for number in self.keys.attempts:
                attempt = self._read(number)
                for at, body in attempt.records.items():
                    if body is not None and is_end(body) and not _is_sound_end(body):
                        if CLEARED.encode() in body:
                            raise
                        self._set_aside()
                        self._put_end(attempt.keys, at)
                        self._note(attempt.keys.record(at), len(body), "the end of the attempt was written again")
            return self.runs.claim(self.workflow_id, take_over=is_ended)

    # --- what is intact --------------------------------------------------------------------------------------------

    def _find_intact(self) -> None:
        lost_values: set[str] = set()
        self._attempts = {number: self._read(number) for number in self.keys.attempts}
        while True:
            for attempt in self._attempts.values():
                attempt.find_intact(lost_values)
            damage = self._first_damage()
            if damage is None:
                return
            number, error = damage
            value = _value_in(error)
            if value and value not in lost_values:
                lost_values.add(value)
            else:
                self._dropped[number] = f"it continues lost records: {error}"

    def _first_damage(self) -> tuple[int, Exception] | None:
        """Read the run as each of its attempts left it; return the first remaining damage."""
        sound: list[int] = []
        self._generation = 0
        newest: CheckpointData | None = None
        fetch = self.runs._fetch(self.workflow_id, self.keys)
        for number, attempt in self._attempts.items():
            if not attempt.is_begun or number in self._dropped:
                continue
            try:
                newest = self._read_whole([*sound, number], fetch) or newest
            except DAMAGE as error:
                return number, error
            sound.append(number)
            if starts_generation(attempt.lines[1]):
                self._generation = number
        if newest is None:
            raise unrepairable_error(self.workflow_id, self.keys.run)
        return None

    def _read_whole(self, numbers: list[int], fetch: Fetch) -> CheckpointData | None:
        image: RunImage = read_run(
            self.workflow_id,
            numbers,
            lambda number: self._attempts[number].text,
            fetch,
            place=lambda number: self.keys.at(number).root,
        )
        for notice in image.notices:
            raise corrupt(self.keys.at(numbers[-1]).root, self.workflow_id, notice)
        found = [image.data(index, fetch) for index in image.checkpoints()]
        for data in found:
            check_values(data.held_values)
        check_values(result.held_output for result in image.history.results)
        return found[-1] if found else None

    def _read(self, number: int) -> _Attempt:
        keys = self.keys.at(number)
        listed = [each.key for each in self.bucket.objects(keys.root, self.workflow_id)]
        bodies = dict(zip(listed, self.bucket.get_all(listed, self.workflow_id), strict=True))
        records = {
            at: _unpacked(body)
            for key, body in bodies.items()
            if key.startswith(f"{keys.records}/") and (at := number_in(key)) is not None
        }
        bundles = {key: _unpacked(body) for key, body in bodies.items() if key.startswith(f"{keys.bundles}/")}
        return _Attempt(keys, records, bundles)

    # --- what is done about it -------------------------------------------------------------------------------------

    def _set_aside(self) -> None:
        """Copy all objects of the run, once."""
        if self._aside:
            return
        name = self.keys.run.removeprefix(f"{RUNS}/")
        moment = self.bucket.now(self.workflow_id)
        self._aside = f"{DAMAGED}/{name}-{moment:%Y%m%dT%H%M%S}-{secrets.token_hex(3)}"
        keys = [each.key for each in self.bucket.objects(self.keys.run, self.workflow_id)]
        copies = [lambda key=key: self.bucket.copy(key, f"{self._aside}/{key}", self.workflow_id) for key in keys]
        for _ in self.bucket.each(copies):
            pass

    def _apply(self, attempt: _Attempt) -> None:
        """Put the intact records of an attempt in their places, and an end after them."""
        keys, records = attempt.keys, attempt.records
        detail = self._dropped.get(keys.attempt, attempt.why)
        kept = {} if keys.attempt in self._dropped or 0 not in attempt.lines else attempt.lines
        for number, line in kept.items():
            if records.get(number) != line:
                self._put(keys.record(number), line)
        doomed = [key for key, body in attempt.bundles.items() if body != _bundle_of(key, kept)]
        if detail:
            end = max(len(kept), 1)
            self._put_end(keys, end)
            after = [number for number in records if number > end or number not in kept]
            for number in after:
                if number != end and _is_any_end(records[number]):
                    self._put_end(keys, number)
                elif number != end:
                    doomed.append(keys.record(number))
            size = sum(len(records[number] or b"") for number in after if not _is_any_end(records[number]))
            place = keys.record(len(kept)) if attempt.why else keys.root
            self._note(place, size, detail)
        self.bucket.delete(doomed, self.workflow_id, "repair")

    def _remove_values_and_messages(self) -> None:
        """Remove damaged large values and messages; no remaining record names the values."""
        doomed = []
        for key, body in self._objects(self.keys.values):
            content = _unpacked(body)
            if content is None or sha256(content).hexdigest() != key.rpartition("/")[2]:
                doomed.append(key)
        for key, body in self._objects(self.keys.signals):
            try:
                read_signal(body or b"", self.workflow_id, key)
            except DAMAGE as error:
                doomed.append(key)
                self._note(key, len(body or b""), str(error))
        self.bucket.delete(doomed, self.workflow_id, "repair")

    def _objects(self, prefix: str) -> list[tuple[str, bytes | None]]:
        keys = [each.key for each in self.bucket.objects(prefix, self.workflow_id)]
        return [*zip(keys, self.bucket.get_all(keys, self.workflow_id), strict=True)]

    def _put(self, key: str, line: bytes) -> None:
        self.bucket.overwrite(key, packed(line), self.workflow_id, "repair")

    def _put_end(self, keys: AttemptKeys, number: int) -> None:
        self._put(keys.record(number), AttemptEnd(RELEASED, self.runs.now(), secrets.token_hex(16)).line())

    def _note(self, place: str, size: int, detail: str) -> None:
        self.lost.append(Loss(place, size, detail))


def _followed(body: bytes | None, digest: bytes, spare: set[bytes], lost_values: set[str]) -> tuple[bytes, bytes, str]:
    """Return the lines of an object that follow a digest, the digest after them, and the damage of the rest."""
    lines = [] if body is None else body.splitlines(keepends=True)
    if lines[0:1] == [] or verify_line(lines[0][:-1], digest) is None:
        lines = _from_spare(digest, spare) or lines
    kept: list[bytes] = []
    why = "" if lines else "it is missing or unreadable"
    for line in lines:
        following = verify_line(line[:-1], digest) if line[-1:] == b"\n" else None
        named = next((value for value in lost_values if value.encode() in line), None)
        if following is None:
            why = "a record does not match its checksum"
        elif named is not None:
            why = f"it needs the large value {named[:12]}, which is damaged"
        if why or following is None:
            break
        kept.append(line)
        digest = following
    if why and kept and kept[-1].startswith(_ADOPTION):
        kept.pop()  # it is useless without the record after it
    return b"".join(kept), digest, why


def _from_spare(digest: bytes, spare: set[bytes]) -> list[bytes]:
    """Return the lines of the next object (a record, and the adoption before it) from copies of single lines."""
    found: list[bytes] = []
    while not found or found[-1].startswith(_ADOPTION):
        for line in spare:
            following = verify_line(line[:-1], digest)
            if following is not None:
                found.append(line)
                digest = following
                break
        else:
            return []
    return found


def _bundle_of(key: str, lines: Mapping[int, bytes]) -> bytes:
    first, last = numbers_in(key) or (0, -1)
    held = [lines.get(number, b"") for number in range(first, last + 1)]
    return b"".join(line for line in held if not is_mark(line)) if all(held) else b""


def _unpacked(body: bytes | None) -> bytes | None:
    try:
        return None if body is None else unpacked(body)
    except InflationError:
        return None


def _is_any_end(body: bytes | None) -> bool:
    return body is not None and is_end(body)


def _is_fence(body: bytes | None) -> bool:
    """Return whether an object is an end that a claim may have put after another end."""
    return body is not None and is_end(body) and (not _is_sound_end(body) or end_in(body).kind == FENCED)


def _is_sound_end(body: bytes) -> bool:
    try:
        end_in(body)
    except (ValueError, KeyError, TypeError):
        return False
    return True


def _value_in(error: Exception) -> str:
    """Return the digest of the large value that an error names."""
    place = error.location if isinstance(error, CheckpointCorruptedError) else ""
    return place.rpartition("/")[2] if "/" in place and len(place.rpartition("/")[2]) == 64 else ""
