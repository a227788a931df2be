"""One attempt in a bucket: its claim, its records, each an object, and its end.

What the objects hold, one after the other, is the text of a segment of the file store: the claim is its header, and
each line carries the digest of the one before. So the rules of reading are the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import attrs

from flowckpt.core.records.listing import Owner
from flowckpt.core.system.process import is_alive
from flowckpt.errors import CheckpointCorruptedError
from flowckpt.stores.leases import LeaseHolder
from flowckpt.stores.log.segment import START, chain_line, opened
from flowckpt.stores.objects.bucket import PAGE, Bucket, Listed
from flowckpt.stores.objects.layout import AttemptKeys, InflationError, number_in, numbers_in, unpacked

# The mark of an arrival: the first record of an attempt that belongs to a run which is brought whole.
#
# Such an attempt, and all below it, count as soon as the process that brought the run has put its end, `released`. Until then, and
# for good where another one put an end there first, nothing is visible of them: the run is as if it had been cleared.


_ARRIVAL_PREFIX = b'{"flowckpt":"arrival"'


def mark_of(token: str) -> bytes:
    """Return what the mark holds.

    Args:
        token: random text of the process that brings the run.
    """
    return chain_line(json.dumps({"flowckpt": "arrival", "token": token}, separators=(",", ":"))[:-1].encode(), START)[
        0
    ]


def is_mark(content: bytes) -> bool:
    """Return whether a record is the mark of an arrival.

    Args:
        content: what its object holds.
    """
    return content.startswith(_ARRIVAL_PREFIX)


def starts_generation(body: bytes | None) -> bool:
    """Return whether the first record of an attempt starts a generation.

    Args:
        body: its object, packed or not; None if it is not there.
    """
    try:
        return json.loads(unpacked(body or b"").partition(b"\n")[0]).get("generation") is True
    except (InflationError, ValueError, AttributeError):  # damaged: readers of the attempt are refused
        return False


def is_whole(content: bytes) -> bool:
    """Return whether a mark matches its checksum.

    Args:
        content: what its object holds.
    """
    return content[-1:] == b"\n" and opened(content[:-1], START) is not None


# The end of an attempt: the object at the number where its next record would have been.
#
# A number is taken once, so the process that puts an end there has ended the attempt for good: a writer that comes later finds
# its number taken. Three may do so: the owner, giving the run up (`released`) or clearing it (`cleared`), and a process that
# takes the run over (`fenced`).


RELEASED, FENCED, CLEARED = "released", "fenced", "cleared"
_END_PREFIX = b'{"flowckpt":"end"'


@attrs.frozen
class AttemptEnd:
    """The end of an attempt.

    Attributes:
        kind: `released`, `fenced` or `cleared`.
        at: when, by the clock of the process that wrote it.
        token: random text of the process that wrote it.
        run: how the run stands, as a list shows it, where its owner said so.
    """

    kind: str
    at: str
    token: str
    run: Mapping[str, Any] | None = None

    def line(self) -> bytes:
        """Return what its object holds."""
        body = json.dumps({"flowckpt": "end", **attrs.asdict(self)}, separators=(",", ":"))
        return chain_line(body[:-1].encode(), START)[0]


def is_end(content: bytes) -> bool:
    """Return whether an object holds an end, and no record.

    Args:
        content: the content of the object.
    """
    return content.startswith(_END_PREFIX)


def end_in(content: bytes) -> AttemptEnd:
    """Return the end in an object.

    Args:
        content: the content of the object.

    Raises:
        ValueError: it is damaged.
    """
    if content[-1:] != b"\n" or opened(content[:-1], START) is None:
        raise ValueError("the end of an attempt does not match its checksum")
    said = json.loads(content)
    return AttemptEnd(said["kind"], said["at"], said["token"], said.get("run"))


class ChangedMeanwhileError(Exception):
    """A listed object is not there any more: the run was cleared, or a claim was given up. Look again."""


@attrs.frozen
class AttemptListing:
    """The keys of an attempt.

    Attributes:
        numbers: of its records, ascending; those that a bundle holds may be left out.
        bundles: the first and the last number of each bundle, ascending.
        last_sign: when anything of it was written last, by the server's clock; None if it has no objects.
        may_arrive: whether its first record may be the mark of an arrival.
    """

    numbers: tuple[int, ...]
    bundles: tuple[tuple[int, int], ...]
    last_sign: datetime | None
    may_arrive: bool = False

    @property
    def tail(self) -> int:
        """The last number that is taken without a gap before it; -1 where none is."""
        known = self.bundles[-1][1] if self.bundles else None
        for number in self.numbers:
            if known is not None and number > known + 1:
                break
            known = number if known is None else max(known, number)
        return -1 if known is None else known


def listing_of(keys: AttemptKeys, listed: list[Listed]) -> AttemptListing:
    """Return what a list says of an attempt.

    Args:
        keys: the keys of the attempt.
        listed: its objects; those of others are passed over.
    """
    numbers = [number_in(each.key) for each in listed if each.key.startswith(f"{keys.records}/")]
    bundles = [numbers_in(each.key) for each in listed if each.key.startswith(f"{keys.bundles}/")]
    signs = [each.modified_at for each in listed if each.key.startswith(f"{keys.root}/")]
    return AttemptListing(
        tuple(sorted(number for number in numbers if number is not None)),
        tuple(sorted(numbers for numbers in bundles if numbers is not None)),
        max(signs, default=None),
        any(each.key == keys.arriving for each in listed),
    )


def list_attempt(bucket: Bucket, keys: AttemptKeys, workflow_id: str) -> AttemptListing:
    """List an attempt, in one request where it is not long; of a long one only what no bundle holds."""
    listed = bucket.objects(keys.root, workflow_id, most=PAGE)
    if len(listed) < PAGE:
        return listing_of(keys, listed)
    signs = [each for each in listed if each.key in (keys.alive, keys.arriving)]
    bundles = bucket.objects(keys.bundles, workflow_id)
    last = numbers_in(bundles[-1].key) if bundles else None
    rest = bucket.objects(keys.records, workflow_id, after=keys.record(last[1]) if last else None)
    return listing_of(keys, [*signs, *bundles, *rest])


@attrs.frozen
class AttemptTail:
    """The last object of an attempt, and what it means.

    Attributes:
        number: the last number that is taken; -1 where none is.
        end: its end, where it has one.
        last_sign: when anything of it was written last.
        is_marked: whether its first record is the mark of an arrival; not asked of one that was released.
        is_begun: whether it has, or may have, a record.
        is_void: whether it belongs to an arrival that is not complete.
        is_over: whether neither it nor anything below it counts.
    """

    number: int
    end: AttemptEnd | None
    last_sign: datetime | None
    is_marked: bool = False

    @property
    def is_begun(self) -> bool:
        """Whether something was recorded under it, besides its claim and its end."""
        return self.number > (0 if self.end is None else 1) and not self.is_void

    @property
    def is_void(self) -> bool:
        """Whether it is marked as an arrival, and not released."""
        return self.is_marked and (self.end is None or self.end.kind != RELEASED)

    @property
    def is_over(self) -> bool:
        """Whether the run was cleared by it, or an arrival ends with it that never was complete."""
        return self.end is not None and (self.end.kind == CLEARED or self.is_void)


def tail_of(bucket: Bucket, keys: AttemptKeys, workflow_id: str) -> AttemptTail:
    """Return where an attempt stands.

    Raises:
        CheckpointCorruptedError: its end is damaged.
    """
    shelf = list_attempt(bucket, keys, workflow_id)
    number = shelf.tail
    content = bucket.get(keys.record(number), workflow_id) if number > 0 else None
    end = None
    if content is not None and is_end(content):
        end = _end(content, keys, number, workflow_id)
    is_marked = False
    if shelf.may_arrive and number > 0 and (end is None or end.kind != RELEASED):
        is_marked = is_mark(bucket.get(keys.record(1), workflow_id) or b"")
    return AttemptTail(number, end, shelf.last_sign, is_marked)


@attrs.frozen
class AttemptContent:
    """An attempt, read.

    Attributes:
        text: its claim and its records, as the text of a segment.
        records: how many objects they are.
        end: its end, where it has one.
        is_marked: whether its first record is the mark of an arrival.
        damage: what is wrong with the object after these; None if nothing is.
    """

    text: bytes = b""
    records: int = 0
    end: AttemptEnd | None = None
    is_marked: bool = False
    damage: CheckpointCorruptedError | None = None

    @property
    def is_begun(self) -> bool:
        """Whether it has a record, so that readers follow it."""
        return self.records > 1

    @property
    def is_generation(self) -> bool:
        """Whether it starts a generation."""
        return starts_generation(self.text.partition(b"\n")[2])

    @property
    def is_nothing(self) -> bool:
        """Whether the run was cleared by it, or arrives with it and is not complete."""
        if self.is_marked and (self.end is None or self.end.kind != RELEASED):
            return True
        return self.end is not None and self.end.kind == CLEARED


def read_attempt(bucket: Bucket, keys: AttemptKeys, workflow_id: str, *, with_bundles: bool = True) -> AttemptContent:
    """Read an attempt, up to the first object that is missing or cannot be read.

    Args:
        bucket: the bucket.
        keys: the keys of the attempt.
        workflow_id: the run, for errors.
        with_bundles: whether to read bundles in place of the records in them, which takes fewer requests.

    Raises:
        ChangedMeanwhileError: it was removed while it was being read.
    """
    if with_bundles:
        shelf = list_attempt(bucket, keys, workflow_id)
    else:
        shelf = attrs.evolve(listing_of(keys, bucket.objects(keys.records, workflow_id)), bundles=())
    single: list[int] = []
    bundled: dict[int, int] = {}
    taken = 0
    for first, last in shelf.bundles:
        if first >= taken:
            single += range(taken, first)
            bundled[first], taken = last, last + 1
    single += [number for number in shelf.numbers if number >= taken]
    order = sorted([*bundled, *single])
    wanted = [keys.bundle(each, bundled[each]) if each in bundled else keys.record(each) for each in order]
    gathered = _Gathered(keys, workflow_id, bundled)
    for number, key, content in zip(order, wanted, bucket.get_all(wanted, workflow_id), strict=True):
        try:
            gathered.add(number, _content(content, key, workflow_id))
        except CheckpointCorruptedError as damage:
            return gathered.content(damage)
    return gathered.content()


@attrs.define
class _Gathered:
    """The objects of an attempt, in their order.

    Attributes:
        keys: the keys of the attempt.
        workflow_id: the run, for errors.
        bundled: the last number of each bundle, by its first.
    """

    keys: AttemptKeys
    workflow_id: str
    bundled: Mapping[int, int]
    _parts: list[bytes] = attrs.field(init=False, factory=list)
    _taken: int = attrs.field(init=False, default=0)
    _end: AttemptEnd | None = attrs.field(init=False, default=None)
    _is_marked: bool = attrs.field(init=False, default=False)

    def content(self, damage: CheckpointCorruptedError | None = None) -> AttemptContent:
        """Return the attempt as far as read."""
        return AttemptContent(b"".join(self._parts), self._taken, self._end, self._is_marked, damage)

    def add(self, number: int, content: bytes) -> None:
        """Add the next object.

        Raises:
            CheckpointCorruptedError: one before it is missing, or it is damaged.
        """
        if number in self.bundled:
            self._parts.append(content)
            self._taken = self.bundled[number] + 1
        elif is_end(content):
            self._add_end(number, content)
        elif self._end is not None or number != self._taken:
            what = "it is missing, and later ones are there" if self._end is None else "it is after the end"
            raise self._corrupt(self._taken if self._end is None else number, what)
        else:
            if content[-1:] != b"\n":
                raise self._corrupt(number, "it is not whole")
            if number == 1 and is_mark(content):
                if not is_whole(content):
                    raise self._corrupt(number, "it does not match its checksum")
                self._is_marked = True
            else:
                self._parts.append(content)
            self._taken += 1

    def _add_end(self, number: int, content: bytes) -> None:
        is_next, taken = number == self._taken, self._taken
        said = _end(content, self.keys, number, self.workflow_id)
        if not is_next and self._end is None and (taken or number > 1) and said.kind != FENCED:
            raise self._corrupt(taken, "it is missing, and the end of the attempt is there")
        self._end = self._end or (said if is_next or not taken else None)

    def _corrupt(self, number: int, detail: str) -> CheckpointCorruptedError:
        return corrupt(self.keys.record(number), self.workflow_id, detail)


def claim_in(content: bytes | None) -> dict[str, Any] | None:
    """Return what a claim says, without proving it; None if there is none that can be read.

    Args:
        content: what the object of the claim holds.
    """
    if content is None:
        return None
    try:
        said = json.loads(unpacked(content))
    except (ValueError, InflationError):
        return None
    return said if isinstance(said, dict) and isinstance(said.get("owner"), dict) else None


def corrupt(key: str, workflow_id: str, detail: str) -> CheckpointCorruptedError:
    """Return the error for a damaged object."""
    return CheckpointCorruptedError(
        workflow_id,
        location=key,
        detail=detail,
        remedy=(
            "Nothing was changed. 'flowckpt store check' lists what is damaged. Restore the object from a backup, "
            "or keep what is intact: 'flowckpt store repair RUN'."
        ),
    )


def _content(body: bytes | None, key: str, workflow_id: str) -> bytes:
    if body is None:
        raise ChangedMeanwhileError(key)
    try:
        return unpacked(body)
    except InflationError as error:
        raise corrupt(key, workflow_id, str(error)) from error


def _end(content: bytes, keys: AttemptKeys, number: int, workflow_id: str) -> AttemptEnd:
    try:
        return end_in(content)
    except (ValueError, KeyError, TypeError) as error:
        raise corrupt(keys.record(number), workflow_id, str(error)) from error


# Who holds an attempt: the process that its claim names, while that sends heartbeats.
#
# Every object of an attempt is one, and `alive` is overwritten when nothing else was written for a while. Their times
# are the server's. They decide only whether a run may be taken without force; that a former owner can write no more is
# the work of the numbers.


_WHOLE_SECOND = 1.0
"""Servers tell times in whole seconds, so a heartbeat may be so much younger than it looks."""


def holder_of(bucket: Bucket, keys: AttemptKeys, tail: AttemptTail, workflow_id: str) -> LeaseHolder | None:
    """Return who holds an attempt, alive or not; None if it has ended or was given up.

    Args:
        bucket: the bucket.
        keys: the keys of the attempt.
        tail: where it stands.
        workflow_id: the run, for errors.
    """
    if tail.end is not None or tail.last_sign is None:
        return None
    return holder_in(bucket.get(keys.record(0), workflow_id), tail.last_sign)


def holder_in(claim: bytes | None, last_sign: datetime) -> LeaseHolder | None:
    """Return whom a claim names; None if it cannot be read.

    Args:
        claim: what the object of the claim holds.
        last_sign: the last heartbeat.
    """
    said = claim_in(claim)
    if said is None:
        return None
    try:
        seconds = float(said["lease_seconds"])
        return LeaseHolder(_owner(said["owner"]), last_sign + timedelta(seconds=seconds + _WHOLE_SECOND))
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def holds_now(bucket: Bucket, holder: LeaseHolder, workflow_id: str) -> bool:
    """Return whether a run is held, by the server's clock where a clock must tell.

    Args:
        bucket: the bucket.
        holder: who may hold it.
        workflow_id: the run, for errors.
    """
    owner = holder.owner
    if is_alive(owner.process) is None:
        return holder.holds(bucket.now(workflow_id))
    return holder.holds(holder.expires_at)


def _owner(said: dict[str, Any]) -> Owner:
    return Owner(**{**said, "acquired_at": datetime.fromisoformat(said["acquired_at"])})
