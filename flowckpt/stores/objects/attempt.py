"""One attempt in a bucket: its claim, its records and its end, one object each.

The concatenated objects are the text of a segment of the file store: the claim is its header, and each line carries the
digest of the line before. So the same rules apply for reading.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import attrs

from flowckpt.core.system.process import is_alive
from flowckpt.errors import CheckpointCorruptedError
from flowckpt.stores.leases import LeaseHolder
from flowckpt.stores.log.segment import START, chain_line, parse_owner, verify_line
from flowckpt.stores.objects.bucket import PAGE, Bucket, ListedObject
from flowckpt.stores.objects.layout import (
    AttemptKeys,
    InflationError,
    parse_bundle_numbers,
    parse_record_number,
    unpack,
)

# The import mark: the first record of an attempt of a run that is being imported.
#
# Such an attempt and all below it count as soon as the importer has put its end, `released`. Until then, and
# permanently if another process puts an end there first, they are invisible, as if the run had been cleared.


_ARRIVAL_PREFIX = b'{"flowckpt":"arrival"'


def chain_document(document: Mapping[str, Any]) -> tuple[bytes, bytes]:
    """Return a document as the first line of a chain, and its digest."""
    return chain_line(json.dumps(document, separators=(",", ":"))[:-1].encode(), START)


def is_intact(line: bytes) -> bool:
    """Return whether the first line of a chain is complete and matches its checksum."""
    return line[-1:] == b"\n" and verify_line(line[:-1], START) is not None


def make_mark(token: str) -> bytes:
    """Return the content of an import mark.

    Args:
        token: random text of the importer.
    """
    return chain_document({"flowckpt": "arrival", "token": token})[0]


def is_mark(content: bytes) -> bool:
    """Return whether a record is an import mark.

    Args:
        content: the content of its object.
    """
    return content.startswith(_ARRIVAL_PREFIX)


def starts_generation(body: bytes | None) -> bool:
    """Return whether the first record of an attempt starts a generation.

    Args:
        body: its object, packed or not; None if it is missing.
    """
    try:
        return json.loads(unpack(body or b"").partition(b"\n")[0]).get("generation") is True
    except (InflationError, ValueError, AttributeError):  # damaged: readers of the attempt are refused
        return False


# The end of an attempt: the object at the number where its next record would have been.
#
# A number can be used only once, so an end is final: a writer that comes later finds
# its number taken. An end is put by the owner, when it releases (`released`) or clears (`cleared`) the run, or by a process that
# takes the run over (`fenced`).


RELEASED, FENCED, CLEARED = "released", "fenced", "cleared"
_END_PREFIX = b'{"flowckpt":"end"'


@attrs.frozen
class AttemptEnd:
    """The end of an attempt.

    Attributes:
        kind: `released`, `fenced` or `cleared`.
        at: the time, by the clock of the process that wrote it.
        token: random text of the process that wrote it.
        run: the state of the run for lists, if its owner recorded it.
    """

    kind: str
    at: str
    token: str
    run: Mapping[str, Any] | None = None

    def line(self) -> bytes:
        """Return the content of its object."""
        return chain_document({"flowckpt": "end", **attrs.asdict(self)})[0]


def is_end(content: bytes) -> bool:
    """Return whether an object holds an end, not a record.

    Args:
        content: the content of the object.
    """
    return content.startswith(_END_PREFIX)


def parse_end(content: bytes) -> AttemptEnd:
    """Return the end in an object.

    Args:
        content: the content of the object.

    Raises:
        ValueError: it is damaged.
    """
    if not is_intact(content):
        raise ValueError("the end of an attempt does not match its checksum")
    document = json.loads(content)
    return AttemptEnd(document["kind"], document["at"], document["token"], document.get("run"))


class ChangedMeanwhileError(Exception):
    """A listed object no longer exists: the run was cleared, or a claim was withdrawn. List again."""


@attrs.frozen
class AttemptListing:
    """The keys of an attempt.

    Attributes:
        numbers: the numbers of its records, ascending; those in a bundle may be missing.
        bundles: the first and the last number of each bundle, ascending.
        last_sign: the time of its newest write, by the server's clock; None if it has no objects.
        may_arrive: whether its first record may be an import mark.
    """

    numbers: tuple[int, ...]
    bundles: tuple[tuple[int, int], ...]
    last_sign: datetime | None
    may_arrive: bool = False

    @property
    def tail(self) -> int:
        """The last number before any gap; -1 if there is none."""
        last = self.bundles[-1][1] if self.bundles else None
        for number in self.numbers:
            if last is not None and number > last + 1:
                break
            last = number if last is None else max(last, number)
        return -1 if last is None else last


def parse_listing(keys: AttemptKeys, listed: list[ListedObject]) -> AttemptListing:
    """Parse a list of an attempt's objects.

    Args:
        keys: the keys of the attempt.
        listed: the objects; those of other attempts are ignored.
    """
    numbers = [parse_record_number(each.key) for each in listed if each.key.startswith(f"{keys.records}/")]
    bundles = [parse_bundle_numbers(each.key) for each in listed if each.key.startswith(f"{keys.bundles}/")]
    signs = [each.modified_at for each in listed if each.key.startswith(f"{keys.root}/")]
    return AttemptListing(
        tuple(sorted(number for number in numbers if number is not None)),
        tuple(sorted(numbers for numbers in bundles if numbers is not None)),
        max(signs, default=None),
        any(each.key == keys.arriving for each in listed),
    )


def list_attempt(bucket: Bucket, keys: AttemptKeys, workflow_id: str) -> AttemptListing:
    """List an attempt, in one request unless it is long; of a long attempt, only the objects outside of bundles."""
    listed = bucket.list_objects(keys.root, workflow_id, most=PAGE)
    if len(listed) < PAGE:
        return parse_listing(keys, listed)
    signs = [each for each in listed if each.key in (keys.alive, keys.arriving)]
    bundles = bucket.list_objects(keys.bundles, workflow_id)
    last = parse_bundle_numbers(bundles[-1].key) if bundles else None
    rest = bucket.list_objects(keys.records, workflow_id, after=keys.record(last[1]) if last else None)
    return parse_listing(keys, [*signs, *bundles, *rest])


@attrs.frozen(kw_only=True)
class _AttemptState:
    """How an attempt counts.

    Attributes:
        end: its end, if it has one.
        is_marked: whether its first record is an import mark.
    """

    end: AttemptEnd | None = None
    is_marked: bool = False

    @property
    def is_void(self) -> bool:
        """Whether it is marked as an import and not released."""
        return self.is_marked and (self.end is None or self.end.kind != RELEASED)

    @property
    def is_over(self) -> bool:
        """Whether it cleared the run, or is an import that was never completed: nothing below it counts, either."""
        return self.end is not None and (self.end.kind == CLEARED or self.is_void)

    @property
    def is_ignored(self) -> bool:
        """Whether readers ignore it and everything below it: it is over, or an import in progress."""
        return self.is_over or self.is_void


@attrs.frozen
class AttemptTail(_AttemptState):
    """The state of an attempt, from its last object; whether a released one is marked is not checked.

    Attributes:
        number: the last number in use; -1 if there is none.
        last_sign: the time of its newest write.
    """

    number: int
    last_sign: datetime | None

    @property
    def is_begun(self) -> bool:
        """Whether it has, or may have, a record besides its claim and its end."""
        return self.number > (0 if self.end is None else 1) and not self.is_void


def read_tail(bucket: Bucket, keys: AttemptKeys, workflow_id: str) -> AttemptTail:
    """Return the state of an attempt.

    Raises:
        CheckpointCorruptedError: its end is damaged.
    """
    listing = list_attempt(bucket, keys, workflow_id)
    number = listing.tail
    content = bucket.get(keys.record(number), workflow_id) if number > 0 else None
    end = None
    if content is not None and is_end(content):
        end = _parse_end_at(keys, number, content, workflow_id)
    is_marked = False
    if listing.may_arrive and number > 0 and (end is None or end.kind != RELEASED):
        is_marked = is_mark(bucket.get(keys.record(1), workflow_id) or b"")
    return AttemptTail(number, listing.last_sign, end=end, is_marked=is_marked)


@attrs.frozen
class AttemptContent(_AttemptState):
    """An attempt that was read.

    Attributes:
        text: its claim and its records, as the text of a segment.
        records: the number of these objects.
        damage: the damage of the next object, or None.
    """

    text: bytes = b""
    records: int = 0
    damage: CheckpointCorruptedError | None = None

    @property
    def is_begun(self) -> bool:
        """Whether it has a record, so that readers follow it."""
        return self.records > 1

    @property
    def is_generation(self) -> bool:
        """Whether it starts a generation."""
        return starts_generation(self.text.partition(b"\n")[2])


def read_attempt(bucket: Bucket, keys: AttemptKeys, workflow_id: str, *, with_bundles: bool = True) -> AttemptContent:
    """Read an attempt, up to the first object that is missing or cannot be read.

    Args:
        bucket: the bucket.
        keys: the keys of the attempt.
        workflow_id: the run, for errors.
        with_bundles: whether to read bundles instead of the records in them, which takes fewer requests.

    Raises:
        ChangedMeanwhileError: it was removed while it was being read.
    """
    if with_bundles:
        listing = list_attempt(bucket, keys, workflow_id)
    else:
        listing = attrs.evolve(parse_listing(keys, bucket.list_objects(keys.records, workflow_id)), bundles=())
    single: list[int] = []
    bundled: dict[int, int] = {}
    following = 0
    for first, last in listing.bundles:
        if first >= following:
            single += range(following, first)
            bundled[first], following = last, last + 1
    single += [number for number in listing.numbers if number >= following]
    order = sorted([*bundled, *single])
    wanted = [keys.bundle(each, bundled[each]) if each in bundled else keys.record(each) for each in order]
    parser = _AttemptParser(keys, workflow_id, bundled)
    for number, key, body in zip(order, wanted, bucket.get_all(wanted, workflow_id), strict=True):
        try:
            parser.add(number, _unpack_object(body, key, workflow_id))
        except CheckpointCorruptedError as damage:
            return parser.content(damage)
    return parser.content()


@attrs.define
class _AttemptParser:
    """Joins the objects of an attempt in their order.

    Attributes:
        keys: the keys of the attempt.
        workflow_id: the run, for errors.
        bundled: the last number of each bundle, by its first.
    """

    keys: AttemptKeys
    workflow_id: str
    bundled: Mapping[int, int]
    _parts: list[bytes] = attrs.field(init=False, factory=list)
    _next: int = attrs.field(init=False, default=0)
    _end: AttemptEnd | None = attrs.field(init=False, default=None)
    _is_marked: bool = attrs.field(init=False, default=False)

    def content(self, damage: CheckpointCorruptedError | None = None) -> AttemptContent:
        """Return the part of the attempt that was read."""
        return AttemptContent(b"".join(self._parts), self._next, damage, end=self._end, is_marked=self._is_marked)

    def add(self, number: int, content: bytes) -> None:
        """Add the next object.

        Raises:
            CheckpointCorruptedError: an earlier object is missing, or this one is damaged.
        """
        if number in self.bundled:
            self._parts.append(content)
            self._next = self.bundled[number] + 1
        elif is_end(content):
            self._add_end(number, content)
        elif self._end is not None:
            raise self._corrupt(number, "it is after the end")
        elif number != self._next:
            raise self._corrupt(self._next, "it is missing, but later ones exist")
        elif content[-1:] != b"\n":
            raise self._corrupt(number, "it is incomplete")
        else:
            if number == 1 and is_mark(content):
                if not is_intact(content):
                    raise self._corrupt(number, "it does not match its checksum")
                self._is_marked = True
            else:
                self._parts.append(content)
            self._next += 1

    def _add_end(self, number: int, content: bytes) -> None:
        is_next, is_first = number == self._next, not self._next
        end = _parse_end_at(self.keys, number, content, self.workflow_id)
        if not is_next and self._end is None and (not is_first or number > 1) and end.kind != FENCED:
            raise self._corrupt(self._next, "it is missing, but the end of the attempt exists")
        self._end = self._end or (end if is_next or is_first else None)

    def _corrupt(self, number: int, detail: str) -> CheckpointCorruptedError:
        return corrupt_object_error(self.keys.record(number), self.workflow_id, detail)


def parse_claim(content: bytes | None) -> dict[str, Any] | None:
    """Return the content of a claim, unverified; None if it is missing or unreadable.

    Args:
        content: the content of the claim's object.
    """
    if content is None:
        return None
    try:
        claim = json.loads(unpack(content))
    except (ValueError, InflationError):
        return None
    return claim if isinstance(claim, dict) and isinstance(claim.get("owner"), dict) else None


_REPAIR = (
    "'flowckpt store check' lists what is damaged. Restore the object from a backup, or keep what is intact: "
    "'flowckpt store repair RUN'."
)


def corrupt_object_error(key: str, workflow_id: str, detail: str, remedy: str = _REPAIR) -> CheckpointCorruptedError:
    """Return the error for a damaged object."""
    return CheckpointCorruptedError(workflow_id, location=key, detail=detail, remedy=f"Nothing was changed. {remedy}")


def _unpack_object(body: bytes | None, key: str, workflow_id: str) -> bytes:
    if body is None:
        raise ChangedMeanwhileError(key)
    try:
        return unpack(body)
    except InflationError as error:
        raise corrupt_object_error(key, workflow_id, str(error)) from error


def _parse_end_at(keys: AttemptKeys, number: int, content: bytes, workflow_id: str) -> AttemptEnd:
    try:
        return parse_end(content)
    except (ValueError, KeyError, TypeError) as error:
        raise corrupt_object_error(keys.record(number), workflow_id, str(error)) from error


# The holder of an attempt is the process named by its claim, as long as it sends heartbeats.
#
# Every object of an attempt is a heartbeat, and `alive` is overwritten if nothing else was written for a while. Their times
# are the server's. They decide only whether a run may be taken over without `--steal`; that a previous owner cannot write is
# ensured by the numbers.


_WHOLE_SECOND = 1.0
"""The precision of servers' times: a heartbeat may be this much newer than it looks."""


def read_holder(bucket: Bucket, keys: AttemptKeys, tail: AttemptTail, workflow_id: str) -> LeaseHolder | None:
    """Return the holder of an attempt, alive or not; None if the attempt has ended.

    Args:
        bucket: the bucket.
        keys: the keys of the attempt.
        tail: its state.
        workflow_id: the run, for errors.
    """
    if tail.end is not None or tail.last_sign is None:
        return None
    return parse_holder(bucket.get(keys.record(0), workflow_id), tail.last_sign)


def parse_holder(claim: bytes | None, last_sign: datetime) -> LeaseHolder | None:
    """Return the holder named by a claim; None if the claim cannot be read.

    Args:
        claim: the content of the claim's object.
        last_sign: the last heartbeat.
    """
    document = parse_claim(claim)
    if document is None:
        return None
    try:
        seconds = float(document["lease_seconds"]) + _WHOLE_SECOND
        return LeaseHolder(parse_owner(document), last_sign + timedelta(seconds=seconds))
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def is_still_held(bucket: Bucket, holder: LeaseHolder, workflow_id: str) -> bool:
    """Return whether a run is held; uses the server's clock if a clock is needed.

    Args:
        bucket: the bucket.
        holder: its possible holder.
        workflow_id: the run, for errors.
    """
    needs_clock = is_alive(holder.owner.process) is None
    return holder.holds(bucket.read_server_time(workflow_id) if needs_clock else holder.expires_at)
