"""One attempt in a bucket: its claim, its records, each an object, and its end.

What the objects hold, one after the other, is the text of a segment of the file store: the claim is its header, and
each line carries the digest of the one before. So the rules of reading are the same.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import attrs

from flowckpt.errors import CheckpointCorruptedError
from flowckpt.stores.objects.arrival import is_mark, is_whole
from flowckpt.stores.objects.bucket import PAGE, Bucket, Listed
from flowckpt.stores.objects.compression import InflationError, unpacked
from flowckpt.stores.objects.ending import CLEARED, FENCED, RELEASED, End, end_in, is_end
from flowckpt.stores.objects.keys import AttemptKeys, number_in, numbers_in


class ChangedMeanwhileError(Exception):
    """What was listed is not there any more: the run was cleared, or a claim was given up. Look again."""


@attrs.frozen
class Shelf:
    """The keys of an attempt.

    Attributes:
        numbers: of its records, ascending; those that a bundle holds may be left out.
        bundles: the first and the last number of each bundle, ascending.
        last_sign: when anything of it was written last, by the server's clock; None where it has no objects.
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


def shelf_of(keys: AttemptKeys, listed: list[Listed]) -> Shelf:
    """Return what a list says of an attempt.

    Args:
        keys: the keys of the attempt.
        listed: its objects; those of others are passed over.
    """
    numbers = [number_in(each.key) for each in listed if each.key.startswith(f"{keys.records}/")]
    bundles = [numbers_in(each.key) for each in listed if each.key.startswith(f"{keys.bundles}/")]
    signs = [each.modified_at for each in listed if each.key.startswith(f"{keys.root}/")]
    return Shelf(
        tuple(sorted(number for number in numbers if number is not None)),
        tuple(sorted(numbers for numbers in bundles if numbers is not None)),
        max(signs, default=None),
        any(each.key == keys.arriving for each in listed),
    )


def list_attempt(bucket: Bucket, keys: AttemptKeys, workflow_id: str) -> Shelf:
    """List an attempt, in one request where it is not long; of a long one only what no bundle holds.

    Args:
        bucket: the bucket.
        keys: the keys of the attempt.
        workflow_id: the run, for errors.
    """
    listed = bucket.objects(keys.root, workflow_id, most=PAGE)
    if len(listed) < PAGE:
        return shelf_of(keys, listed)
    signs = [each for each in listed if each.key in (keys.alive, keys.arriving)]
    bundles = bucket.objects(keys.bundles, workflow_id)
    last = numbers_in(bundles[-1].key) if bundles else None
    rest = bucket.objects(keys.records, workflow_id, after=keys.record(last[1]) if last else None)
    return shelf_of(keys, [*signs, *bundles, *rest])


@attrs.frozen
class Tail:
    """Where an attempt stands.

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
    end: End | None
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


def tail_of(bucket: Bucket, keys: AttemptKeys, workflow_id: str) -> Tail:
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
    return Tail(number, end, shelf.last_sign, is_marked)


@attrs.frozen
class Content:
    """An attempt, read.

    Attributes:
        text: its claim and its records, as the text of a segment.
        records: how many objects they are.
        end: its end, where it has one.
        is_marked: whether its first record is the mark of an arrival.
    """

    text: bytes = b""
    records: int = 0
    end: End | None = None
    is_marked: bool = False

    @property
    def is_begun(self) -> bool:
        """Whether it has a record, so that readers follow it."""
        return self.records > 1

    @property
    def is_nothing(self) -> bool:
        """Whether the run was cleared by it, or arrives with it and is not complete."""
        if self.is_marked and (self.end is None or self.end.kind != RELEASED):
            return True
        return self.end is not None and self.end.kind == CLEARED


def read_attempt(bucket: Bucket, keys: AttemptKeys, workflow_id: str, *, with_bundles: bool = True) -> Content:
    """Read an attempt.

    Args:
        bucket: the bucket.
        keys: the keys of the attempt.
        workflow_id: the run, for errors.
        with_bundles: whether to read bundles in place of the records in them, which takes fewer requests.

    Raises:
        CheckpointCorruptedError: a record is missing, or cannot be read.
        ChangedMeanwhileError: it was removed while it was being read.
    """
    if with_bundles:
        shelf = list_attempt(bucket, keys, workflow_id)
    else:
        shelf = attrs.evolve(shelf_of(keys, bucket.objects(keys.records, workflow_id)), bundles=())
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
    parts: list[bytes] = []
    taken, end, is_marked = 0, None, False
    for number, key, body in zip(order, wanted, bucket.get_all(wanted, workflow_id), strict=True):
        content = _content(body, key, workflow_id)
        if number in bundled:
            parts.append(content)
            taken = bundled[number] + 1
            continue
        if is_end(content):
            is_next = number == taken
            said = _end(content, keys, number, workflow_id)
            if not is_next and end is None and (taken or number > 1) and said.kind != FENCED:
                raise corrupt(keys.record(taken), workflow_id, "it is missing, and the end of the attempt is there")
            end = end or (said if is_next or not taken else None)
        elif end is not None or number != taken:
            place = keys.record(taken if end is None else number)
            what = "it is missing, and later ones are there" if end is None else "it stands behind the end"
            raise corrupt(place, workflow_id, what)
        else:
            if content[-1:] != b"\n":
                raise corrupt(keys.record(number), workflow_id, "it is not whole")
            if number == 1 and is_mark(content):
                if not is_whole(content):
                    raise corrupt(keys.record(number), workflow_id, "it does not match its checksum")
                is_marked = True
            else:
                parts.append(content)
            taken += 1
    return Content(b"".join(parts), taken, end, is_marked)


def claim_in(content: bytes | None) -> dict[str, Any] | None:
    """Return what a claim says, without proving it; None where there is none that can be read.

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
        remedy="Nothing was changed. 'flowckpt check' lists what is damaged; restore the object from a backup.",
    )


def _content(body: bytes | None, key: str, workflow_id: str) -> bytes:
    if body is None:
        raise ChangedMeanwhileError(key)
    try:
        return unpacked(body)
    except InflationError as error:
        raise corrupt(key, workflow_id, str(error)) from error


def _end(content: bytes, keys: AttemptKeys, number: int, workflow_id: str) -> End:
    try:
        return end_in(content)
    except (ValueError, KeyError, TypeError) as error:
        raise corrupt(keys.record(number), workflow_id, str(error)) from error
