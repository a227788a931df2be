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
from flowckpt.errors import CheckpointCorruptedError, CheckpointNotFoundError, FlowckptError
from flowckpt.stores.base import Finding, refuse_failed
from flowckpt.stores.content import check_values
from flowckpt.stores.log.image import RunImage, read_run
from flowckpt.stores.log.segment import START, verify_line
from flowckpt.stores.objects.attempt import (
    CLEARED,
    FENCED,
    RELEASED,
    AttemptEnd,
    corrupt_object_error,
    is_end,
    is_intact,
    is_mark,
    make_mark,
    parse_end,
    starts_generation,
)
from flowckpt.stores.objects.bucket import Bucket
from flowckpt.stores.objects.claim import ClaimedAttempt, read_keys, sweep, withdraw_claim
from flowckpt.stores.objects.layout import (
    RUNS,
    AttemptKeys,
    InflationError,
    RunKeys,
    pack,
    parse_bundle_numbers,
    parse_record_number,
    unpack,
)
from flowckpt.stores.objects.signals import parse_signal
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
    keys = read_keys(runs.bucket, workflow_id)
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
    place = f"{runs.bucket}/{aside}" if aside else ""
    return Repaired(workflow_id, place, tuple(lost), count, len(latest.step_results), latest.checkpoint_id)


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
        ends: the ends among its objects, by number; None if one is damaged.
        lines: its intact records by number, the claim first.
        damage: the damage of its first damaged record; empty if there is none.
    """

    keys: AttemptKeys
    records: Mapping[int, bytes | None]
    bundles: Mapping[str, bytes | None]
    ends: Mapping[int, AttemptEnd | None]
    lines: dict[int, bytes] = attrs.field(factory=dict)
    damage: str = ""

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
        self.lines, self.damage = {}, ""
        spare = {line for body in self.bundles.values() for line in (body or b"").splitlines(keepends=True)}
        digest, number = START, 0
        last = max([*self.records, *((parse_bundle_numbers(each) or (0, 0))[1] for each in self.bundles)], default=-1)
        while number <= last and not self.damage:
            if number in self.ends:
                if self.ends[number] is None:
                    self.damage = "the end of the attempt does not match its checksum"
                elif any(at > number and not self._may_be_fence(at) for at in self.records):
                    self.damage = "it is missing, but later ones exist"  # a claim has put an end in its place
                return
            body = self.records.get(number)
            if number == 1 and body is not None and is_mark(body):
                lines = body if is_intact(body) else make_mark(secrets.token_hex(16))
            else:
                lines, digest, self.damage = _follow_chain(body, digest, spare, lost_values)
            if lines:
                self.lines[number] = lines
            number += 1

    def _may_be_fence(self, number: int) -> bool:
        """Return whether an object is an end that a claim may have put after another end."""
        end = self.ends.get(number)
        return number in self.ends if end is None else end.kind == FENCED


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
        writer = self.runs.make_blank_writer(self.workflow_id, claimed)
        self.runs.keep_alive(self.workflow_id, writer)
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
            withdraw_claim(self.bucket, claimed.keys.at(claimed.attempt), self.workflow_id)
        return self._aside

    def _claim(self) -> ClaimedAttempt:
        """Claim the run, which ends all attempts; a damaged end is removed first."""
        newest = self._read(self.keys.attempts[-1])
        # An end after a gap has ended the attempt, too, so there is no owner to check.
        is_ended = bool(newest.records) and max(newest.records) in newest.ends
        try:
            return self.runs.claim(self.workflow_id, take_over=is_ended)
        except CheckpointCorruptedError:
            for number in self.keys.attempts:
                attempt = self._read(number)
                for at, end in attempt.ends.items():
                    body = attempt.records[at] or b""
                    if end is None:
                        if CLEARED.encode() in body:
                            raise
                        self._set_aside()
                        self._put_end(attempt.keys, at)
                        self._add_loss(attempt.keys.record(at), len(body), "the end of the attempt was written again")
            return self.runs.claim(self.workflow_id, take_over=is_ended)

    # --- what is intact --------------------------------------------------------------------------------------------

    def _find_intact(self) -> None:
        lost_values: set[str] = set()
        self._attempts = {number: self._read(number) for number in self.keys.attempts}
        while True:
            for attempt in self._attempts.values():
                attempt.find_intact(lost_values)
            damage = self._find_first_damage()
            if damage is None:
                return
            number, error = damage
            value = _parse_value_digest(error)
            if value and value not in lost_values:
                lost_values.add(value)
            else:
                self._dropped[number] = f"it continues lost records: {error.message}"

    def _find_first_damage(self) -> tuple[int, FlowckptError] | None:
        """Read the run as each of its attempts left it; return the first remaining damage."""
        sound: list[int] = []
        self._generation = 0
        newest: CheckpointData | None = None
        fetch = self.runs._make_fetch(self.workflow_id, self.keys)
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
            raise corrupt_object_error(self.keys.at(numbers[-1]).root, self.workflow_id, notice)
        checkpoints = [image.data(index, fetch) for index in image.checkpoints()]
        for data in checkpoints:
            check_values(data.held_values)
        check_values(result.held_output for result in image.history.results)
        return checkpoints[-1] if checkpoints else None

    def _read(self, number: int) -> _Attempt:
        keys = self.keys.at(number)
        contents = {key: _unpack_or_none(body) for key, body in self._read_objects(keys.root)}
        records = {
            at: content
            for key, content in contents.items()
            if key.startswith(f"{keys.records}/") and (at := parse_record_number(key)) is not None
        }
        bundles = {key: content for key, content in contents.items() if key.startswith(f"{keys.bundles}/")}
        ends = {at: _parse_end_or_none(content) for at, content in records.items() if content and is_end(content)}
        return _Attempt(keys, records, bundles, ends)

    # --- what is done about it -------------------------------------------------------------------------------------

    def _set_aside(self) -> None:
        """Copy all objects of the run, once."""
        if self._aside:
            return
        name = self.keys.run.removeprefix(f"{RUNS}/")
        moment = self.bucket.read_server_time(self.workflow_id)
        self._aside = f"{DAMAGED}/{name}-{moment:%Y%m%dT%H%M%S}-{secrets.token_hex(3)}"
        keys = self.bucket.list_keys(self.keys.run, self.workflow_id)
        self.bucket.call_for_each(lambda key: self.bucket.copy(key, f"{self._aside}/{key}", self.workflow_id), keys)

    def _apply(self, attempt: _Attempt) -> None:
        """Put the intact records of an attempt in their places, and an end after them."""
        keys, records = attempt.keys, attempt.records
        detail = self._dropped.get(keys.attempt, attempt.damage)
        intact = {} if keys.attempt in self._dropped or 0 not in attempt.lines else attempt.lines
        for number, line in intact.items():
            if records.get(number) != line:
                self._put(keys.record(number), line)
        doomed = [key for key, body in attempt.bundles.items() if body != _join_bundle(key, intact)]
        if detail:
            end = max(len(intact), 1)
            self._put_end(keys, end)
            after = [number for number in records if number > end or number not in intact]
            for number in after:
                if number != end and number in attempt.ends:
                    self._put_end(keys, number)
                elif number != end:
                    doomed.append(keys.record(number))
            size = sum(len(records[number] or b"") for number in after if number not in attempt.ends)
            place = keys.record(len(intact)) if attempt.damage else keys.root
            self._add_loss(place, size, detail)
        self.bucket.delete(doomed, self.workflow_id, "repair")

    def _remove_values_and_messages(self) -> None:
        """Remove damaged large values and messages; no remaining record names the values."""
        doomed = []
        for key, body in self._read_objects(self.keys.values):
            content = _unpack_or_none(body)
            if content is None or sha256(content).hexdigest() != key.rpartition("/")[2]:
                doomed.append(key)
        for key, body in self._read_objects(self.keys.signals):
            try:
                parse_signal(body or b"", self.workflow_id, key)
            except DAMAGE as error:
                doomed.append(key)
                self._add_loss(key, len(body or b""), error.message)
        self.bucket.delete(doomed, self.workflow_id, "repair")

    def _read_objects(self, prefix: str) -> list[tuple[str, bytes | None]]:
        """Return the objects under a prefix, by key."""
        keys = self.bucket.list_keys(prefix, self.workflow_id)
        return [*zip(keys, self.bucket.get_all(keys, self.workflow_id), strict=True)]

    def _put(self, key: str, line: bytes) -> None:
        self.bucket.overwrite(key, pack(line), self.workflow_id, "repair")

    def _put_end(self, keys: AttemptKeys, number: int) -> None:
        self._put(keys.record(number), AttemptEnd(RELEASED, self.runs.format_now(), secrets.token_hex(16)).line())

    def _add_loss(self, place: str, size: int, detail: str) -> None:
        self.lost.append(Loss(place, size, detail))


def _follow_chain(
    body: bytes | None, digest: bytes, spare: set[bytes], lost_values: set[str]
) -> tuple[bytes, bytes, str]:
    """Return the lines of an object that follow a digest, the digest after them, and the damage of the rest."""
    lines = [] if body is None else body.splitlines(keepends=True)
    if not lines or verify_line(lines[0][:-1], digest) is None:
        lines = _find_spare(digest, spare) or lines
    intact: list[bytes] = []
    damage = "" if lines else "it is missing or unreadable"
    for line in lines:
        following = verify_line(line[:-1], digest) if line[-1:] == b"\n" else None
        lost = next((value for value in lost_values if value.encode() in line), None)
        if following is None:
            damage = "a record does not match its checksum"
            break
        if lost is not None:
            damage = f"it needs the large value {lost[:12]}, which is damaged"
            break
        intact.append(line)
        digest = following
    if damage and intact and intact[-1].startswith(_ADOPTION):
        intact.pop()  # it is useless without the record after it
    return b"".join(intact), digest, damage


def _find_spare(digest: bytes, spare: set[bytes]) -> list[bytes]:
    """Return the lines of the next object (a record, and the adoption before it) from copies of single lines."""
    lines: list[bytes] = []
    while not lines or lines[-1].startswith(_ADOPTION):
        for line in spare:
            following = verify_line(line[:-1], digest)
            if following is not None:
                lines.append(line)
                digest = following
                break
        else:
            return []
    return lines


def _join_bundle(key: str, lines: Mapping[int, bytes]) -> bytes:
    first, last = parse_bundle_numbers(key) or (0, -1)
    records = [lines.get(number, b"") for number in range(first, last + 1)]
    return b"".join(line for line in records if not is_mark(line)) if all(records) else b""


def _unpack_or_none(body: bytes | None) -> bytes | None:
    try:
        return None if body is None else unpack(body)
    except InflationError:
        return None


def _parse_end_or_none(content: bytes) -> AttemptEnd | None:
    try:
        return parse_end(content)
    except (ValueError, KeyError, TypeError):
        return None


def _parse_value_digest(error: Exception) -> str:
    """Return the digest of the large value that an error names."""
    place = error.location if isinstance(error, CheckpointCorruptedError) else ""
    _, slash, name = place.rpartition("/")
    return name if slash and len(name) == 64 else ""
