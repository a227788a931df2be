"""The keys of a protected store: only their holders can write; without encryption, everyone can read."""

from __future__ import annotations

import contextlib
import errno
import hmac
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import attrs

from flowckpt.core.codec.blob import Fetch
from flowckpt.core.system.attrs_base import FieldEquality, lazy_frozen
from flowckpt.core.system.filesystem import Directory, open_if_there
from flowckpt.core.system.ids import new_token
from flowckpt.errors import (
    CheckpointCorruptedError,
    CheckpointStorageError,
    FlowckptError,
    ForeignRecordError,
    KeyMissingError,
    UnauthenticatedRecordError,
    WrongKeyError,
)
from flowckpt.stores.file.directory import (
    find_missing_end,
    read_heads,
    read_image,
    read_lines,
    read_segment,
    sweep_abandoned,
    write_new,
)
from flowckpt.stores.file.layout import (
    HEAD,
    IDENTITY,
    NOT_OURS,
    RUNS,
    keys_name,
    keys_numbers,
    segment_name,
    segment_numbers,
)
from flowckpt.stores.file.signals import read_signals
from flowckpt.stores.log.image import RunImage, open_header
from flowckpt.stores.log.sealing.protection import Seals
from flowckpt.stores.log.segment import START, TRAILER, SegmentDamagedError, chain_line, parse_header, verify_line

if TYPE_CHECKING:
    from flowckpt.stores.log.sealing.keys import Key, KeyRing


# The identity of a store that is protected by a key: created once, durable, and part of everything that is sealed in
# it.
#
# It is `store.json` in the store's directory. Its existence also means that nothing is written without a key. A store
# that never had a key has none.


def read_identity(root: Directory) -> str | None:
    """Return the identity of a store, or None if it has none.

    Args:
        root: the store's directory, open.

    Raises:
        CheckpointCorruptedError: the file exists but is invalid.
    """
    if not root.exists(IDENTITY):
        return None
    with root.reading(IDENTITY) as file:
        text = root.calls.read(file, 4096, 0)
    try:
        found = json.loads(text)["store_id"]
    except (ValueError, LookupError, TypeError):
        found = None
    if type(found) is not str or not found:
        raise CheckpointCorruptedError(
            "",
            location=IDENTITY,
            detail="it does not contain the identity of the store",
            remedy='Restore it from a backup, or write {"flowckpt":"store","store_id":"…"}: the header of each segment '
            "has the id, as 'store'.",
        )
    return found


def make_identity(root: Directory) -> str:
    """Create the identity of a store durably and return it; or return the one that another process created meanwhile.

    Args:
        root: the store's directory, open.
    """
    text = json.dumps({"flowckpt": "store", "schema_version": 1, "store_id": new_token(16)}).encode() + b"\n"
    write_new(root, IDENTITY, text)
    root.sync()
    found = read_identity(root)
    assert found is not None
    return found


_TRIES = 100
_MOST_CHECKED = 32
"""Maximum runs checked for a seal in a store without an identity: each takes 40 µs, in every process that writes."""


class Guard:
    """Refuses access without a key of the store, before any change.

    Args:
        store_id: returns the identity of the store, or None if it has none.
    """

    def __init__(self, seals: Seals, store_id: Callable[[], str | None]) -> None:
        self._seals = seals
        self._store_id = store_id
        self._is_plain = False
        self._is_reader_known = False
        self._store_with_key: str | None = None

    def check_writer(self, root: Directory, workflow_id: str) -> None:
        """Refuse a write without a key of the store; note a new key that precedes a known one.

        Args:
            root: the store's directory, open.
            workflow_id: the run to change; empty for the store.

        Raises:
            KeyMissingError: the store is protected by a key, and there is none.
            WrongKeyError: none of the keys belongs to the store.
            CheckpointCorruptedError: runs are sealed but the store has lost its identity, or a note of its keys is
                damaged.
        """
        ring = self._seals.protection.ring
        if not self._has_identity(root):
            return
        if ring is None:
            raise KeyMissingError(workflow_id, key_id=self._read_newest_key_id(root))
        self._ensure_key_is_known(root, ring, workflow_id)

    def check_reader(self, root: Directory, workflow_id: str) -> None:
        """Refuse to read with foreign keys. Without a key, everything that is not encrypted can be read.

        Args:
            root: the store's directory, open.
            workflow_id: the run to read; empty for the store.

        Raises:
            WrongKeyError: none of the keys belongs to the store.
            CheckpointCorruptedError: runs are sealed but the store has lost its identity, or a note of its keys is
                damaged.
        """
        ring = self._seals.protection.ring
        if ring is None or self._is_reader_known or not self._has_identity(root):
            return
        store_id = self._store_id()
        if store_id is None:  # removed meanwhile: each record raises an error
            return
        known = read_keys(root)
        if known:  # otherwise each record is checked by itself
            check_ring(ring, known, store_id, workflow_id)
            self._is_reader_known = True

    def make_identity(self, root: Directory, workflow_id: str) -> None:
        """Ensure that a store has an identity and knows the key, before anything is sealed in it.

        Args:
            root: the store's directory, open and just synced, so that an identity made by another process is durable.
            workflow_id: the run to write.

        Raises:
            WrongKeyError: none of the keys belongs to the store.
            CheckpointCorruptedError: runs are sealed but the store has lost its identity.
        """
        ring = self._seals.protection.ring
        if ring is None:
            return
        sweep_abandoned(root)
        if read_identity(root) is None:
            is_sealed = keys_numbers(root.names()) or any(iter_sealed_segments(root))
            if is_sealed and not root.exists(IDENTITY):  # otherwise another process just made it
                raise lost_identity_error(root)
            make_identity(root)
        self._ensure_key_is_known(root, ring, workflow_id)

    def _ensure_key_is_known(self, root: Directory, ring: KeyRing, workflow_id: str) -> None:
        """Ensure that the store knows the key for writing, which must be its own or come with one that is."""
        store_id = read_identity(root)
        if store_id is None or store_id == self._store_with_key:
            return
        for _ in range(_TRIES):
            known = read_keys(root)
            if known:
                check_ring(ring, known, store_id, workflow_id)
                if any((each.id, each.use) == (ring.newest.id, ring.newest.use) for each in known):
                    self._store_with_key = store_id
                    return
                keys = [ring.newest]
            else:
                proved = self._find_proved_keys(root, ring, workflow_id)
                keys = [ring.newest, *(key for key in proved if key != ring.newest)]
            # Another process may have made the identity in the note without syncing it yet.
            root.sync()
            add_keys(root, keys, store_id, known)
        raise CheckpointStorageError(
            f"the keys of the store change faster than one could be noted for run {workflow_id!r}",
            workflow_id=workflow_id,
            operation="save",
        )

    def _find_proved_keys(self, root: Directory, ring: KeyRing, workflow_id: str) -> list[Key]:
        """Return the keys that a record of the store proves, for a store from before keys were noted.

        Raises:
            WrongKeyError: there are sealed records, but none of the keys opens one.
        """
        foreign = ""
        proved: dict[str, Key] = {}
        for segment in iter_sealed_segments(root):
            if len(proved) == len(ring.keys):
                break
            key = ring.get(segment.key_id)
            if key is None:
                foreign = foreign or segment.key_id
            elif key.id not in proved and segment.is_proved_by(self._seals):
                proved[key.id] = key
        if foreign and not proved:
            raise WrongKeyError(workflow_id, key_id=foreign, known=[key.id for key in ring.keys], is_whole_store=True)
        return [key for key in ring.keys if key.id in proved]

    def _has_identity(self, root: Directory) -> bool:
        """Return whether the store has an identity.

        Raises:
            CheckpointCorruptedError: it has none, but contains sealed records: the identity was removed.
        """
        if root.exists(IDENTITY):
            return True
        if not self._is_plain:
            if keys_numbers(root.names()) or has_sealed_run(root):
                if root.exists(IDENTITY):  # another process just made it, and then the rest
                    return True
                raise lost_identity_error(root)
            self._is_plain = True
        return False

    def _read_newest_key_id(self, root: Directory) -> str:
        try:
            known = read_keys(root)
        except CheckpointCorruptedError:  # the key id is only a help
            return ""
        return known[0].id if known else ""


# The keys of a store as its runs name them, without opening a record, for a store without notes.


@lazy_frozen(eq=False, repr=False)
class SealedSegment:
    """A segment with a header that names its seal.

    Attributes:
        workflow_id: the run, according to the header.
        number: the segment.
        key_id: the key, according to the header.
        store_id: the store, according to the header.
        header: the bytes of the header, with its line feed.
    """

    workflow_id: str
    number: int
    key_id: str
    store_id: str
    header: bytes

    def is_proved_by(self, seals: Seals) -> bool:
        """Return whether an available key opens the header."""
        try:
            _, seal = open_header(self.workflow_id, self.number, self.header, seals)
        except FlowckptError:
            return False
        return seal is not None and seal.is_verified


def has_sealed_run(root: Directory) -> bool:
    """Return whether one of the first runs of a store was written with a key: each such run has a head file.

    Args:
        root: the store's directory, open.
    """
    runs = islice(_iter_runs(root), _MOST_CHECKED)
    return any(name.startswith(HEAD) for _, names in runs for name in names)


def iter_sealed_segments(root: Directory) -> Iterator[SealedSegment]:
    """Return the sealed segments of a store, run by run, the newest of each run first.

    Args:
        root: the store's directory, open.
    """
    for directory, names in _iter_runs(root):
        for number in reversed(segment_numbers(names)):
            with _ignore_foreign():
                data = read_lines(directory, segment_name(number), 1)
                header, end, _ = parse_header(data)
                seal: Any = header["seal"]
                yield SealedSegment(
                    str(header["workflow_id"]), number, str(seal["key"]), str(seal["store"]), data[:end]
                )


def list_plain_runs(root: Directory) -> list[str]:
    """Return the ids of the runs whose newest segment was written without a key.

    Args:
        root: the store's directory, open.
    """
    found = []
    for directory, names in _iter_runs(root):
        numbers = segment_numbers(names)
        with _ignore_foreign():
            header, _, _ = parse_header(read_lines(directory, segment_name(numbers[-1]), 1))
            if "seal" not in header and header.get("kind") != "cleared":
                found.append(str(header["workflow_id"]))
    return found


def lost_identity_error(root: Directory) -> CheckpointCorruptedError:
    """Return the error for a store with sealed runs, or notes of its keys, but without an identity.

    Args:
        root: the store's directory, open.
    """
    store_id, key_id = _find_ids(root)
    detail = "it is missing, but runs in the store are sealed with a key"
    text = ""
    if store_id:
        detail = f"it is missing, but records in the store name the store {store_id} and the key {key_id}"
        text = f'{{"flowckpt":"store","schema_version":1,"store_id":"{store_id}"}}'
    return CheckpointCorruptedError(
        "",
        location=IDENTITY,
        detail=detail,
        remedy="Nothing was changed. Restore it from a backup" + (f", or write it again: {text}" if text else "."),
    )


def _find_ids(root: Directory) -> tuple[str, str]:
    """Return the store and a key named by a sealed run, otherwise by a note of keys; empty if there is neither."""
    for segment in iter_sealed_segments(root):
        return segment.store_id, segment.key_id
    with contextlib.suppress(CheckpointCorruptedError, OSError):
        for known in read_keys(root):
            return known.store_id, known.id
    return "", ""


@contextlib.contextmanager
def _ignore_foreign() -> Iterator[None]:
    """Ignore files that are not flowckpt's segments; raise disk errors, which do not show what a file is."""
    try:
        with contextlib.suppress(SegmentDamagedError, ValueError, LookupError, TypeError):
            yield
    except OSError as error:
        if error.errno not in NOT_OURS:
            raise


def _iter_runs(root: Directory) -> Iterator[tuple[Directory, list[str]]]:
    """Yield each run's directory, open, with the names in it; skip everything else, and runs of another user."""
    with open_if_there(root.open, RUNS) as runs:
        for name in sorted(() if runs is None else runs.names()):
            if runs is None or name[0] == ".":  # being received, not a run yet
                continue
            try:
                opened = runs.open(name)
            except OSError as error:
                if error.errno not in (*NOT_OURS, errno.EACCES):
                    raise
                continue
            with opened as directory:
                yield directory, directory.names()


# The keys of a store: notes next to `store.json`, each written once and never changed.
#
# `keys-00000001.json` is one line with a checksum. For each key it has the id, the use, and a proof for this store that
# only the holder of the key can compute. A rotation adds `keys-00000002.json`, and so on. A note is written under a
# random name, synced, and *linked* to the number after the newest note that its writer has read. So if two processes
# add different keys at the same time, one finds the number taken, reads the other's note, and must have one of its
# keys.


_MOST_BYTES = 1 << 16


@lazy_frozen(eq=False, repr=False)
class KnownKey(FieldEquality):
    """A key of the store, as noted.

    Attributes:
        id: the key's id.
        use: its use.
        store_id: the store.
        proof: a digest that only a holder of the key can compute.
        place: the name of the note.
    """

    id: str
    use: str
    store_id: str
    proof: str
    place: str


def read_keys(root: Directory) -> list[KnownKey]:
    """Return the keys of a store, the newest note first; empty if there is no note.

    Args:
        root: the store's directory, open.

    Raises:
        CheckpointCorruptedError: a note is damaged.
    """
    found: list[KnownKey] = []
    for number in reversed(keys_numbers(root.names())):
        found += _read_note(root, keys_name(number))
    return found


def _read_note(root: Directory, name: str) -> list[KnownKey]:
    with root.reading(name) as file:
        line, end, rest = root.calls.read(file, _MOST_BYTES, 0).partition(b"\n")
    if not end or rest or verify_line(line, START) is None:
        raise _damage_error(name, "its checksum does not match")
    try:
        document = json.loads(line[: len(line) - TRAILER] + b"}")
        store_id = str(document["store_id"])
        found = [
            KnownKey(str(each["id"]), str(each["use"]), store_id, str(each["proof"]), name) for each in document["keys"]
        ]
    except (ValueError, LookupError, TypeError) as error:
        raise _damage_error(name, f"it is malformed: {error!r:.80}") from error
    if not found:
        raise _damage_error(name, "it does not contain keys")
    return found


def check_ring(ring: KeyRing, known: Sequence[KnownKey], store_id: str, workflow_id: str) -> None:
    """Refuse keys if none of them belongs to the store.

    Args:
        ring: the available keys.
        known: the keys of the store; at least one.
        store_id: the store.
        workflow_id: the requested run, for errors; may be empty.

    Raises:
        WrongKeyError: none of them belongs to the store.
        CheckpointCorruptedError: a note names an available key, but its proof is wrong.
    """
    is_ours = False
    for each in known:
        key = ring.get(each.id)
        if key is not None:
            if not hmac.compare_digest(attrs.evolve(key, use=each.use).make_proof(store_id), each.proof):
                raise _damage_error(each.place, f"its proof of key {each.id} does not match the store {store_id}")
            is_ours = True
    if not is_ours:
        raise WrongKeyError(workflow_id, key_id=known[0].id, known=[key.id for key in ring.keys], is_whole_store=True)


def add_keys(root: Directory, keys: Iterable[Key], store_id: str, known: Sequence[KnownKey]) -> None:
    """Write a note of keys, durably, unless another process has written one with the same number.

    The number follows the notes that were read, not the current names: a note written meanwhile has not been checked.

    Args:
        root: the store's directory, open.
        keys: the keys, the newest first.
        store_id: the store.
        known: the result of `read_keys` that the keys were checked against.
    """
    number = max([*keys_numbers([each.place for each in known]), 0]) + 1
    entries = [{"id": key.id, "use": key.use, "proof": key.make_proof(store_id)} for key in keys]
    document = {"flowckpt": "keys", "schema_version": 1, "store_id": store_id, "keys": entries}
    text, _ = chain_line(json.dumps(document, separators=(",", ":"))[:-1].encode(), START)
    if write_new(root, keys_name(number), text):
        root.sync()


def _damage_error(name: str, detail: str) -> CheckpointCorruptedError:
    return CheckpointCorruptedError(
        "",
        location=name,
        detail=detail,
        remedy=f"Nothing was changed. Restore {name} from a backup, or move it away: the next write with the right "
        "key then checks that key against the records of the store, and notes it again.",
    )


# The parts of a run that the key does not prove, which `trust` accepts anyway.


@lazy_frozen(eq=False, repr=False)
class TrustReport(FieldEquality):
    """The parts of a run that the key proves, and the others.

    Attributes:
        workflow_id: the run.
        checkpoints: the current number of checkpoints.
        results: the current number of results.
        is_proved: whether the key proves all of it, so that nothing is taken on trust.
        plain: its segments that were written without a key.
        sealed: its segments that the key proves.
        lost: the known loss at its end, or why that is unknown; empty if nothing is missing.
        message: why its messages are refused; empty if they are accepted.
    """

    workflow_id: str
    checkpoints: int
    results: int
    is_proved: bool
    plain: tuple[str, ...] = ()
    sealed: tuple[str, ...] = ()
    lost: str = ""
    message: str = ""


def trust_report(directory: Directory, workflow_id: str, fetch: Fetch, seals: Seals) -> TrustReport:
    """Return which parts of a run the key proves.

    Args:
        directory: the run's directory, open.
        workflow_id: the run.
        fetch: reads large values.
        seals: the seals of the store, opened with `trust`.

    Raises:
        CheckpointCorruptedError: a sealed record does not open, or a record is damaged, which trust cannot accept.
        FileNotFoundError: the run was cleared or compacted meanwhile; try again.
    """
    heads = read_heads(directory)
    image = read_image(directory, workflow_id, fetch, seals=seals)
    strict = seals.without_trust()
    is_proved = not _find_refusal(lambda: read_image(directory, workflow_id, fetch, seals=strict))
    plain: list[str] = []
    sealed: list[str] = []
    for number in sorted({record.file for record in image.records}):
        _, seal = open_header(workflow_id, number, read_segment(directory, number), seals)
        (plain if seal is None else sealed).append(segment_name(number))
    return TrustReport(
        workflow_id,
        len(image.checkpoints()),
        len(image.history.results),
        is_proved,
        tuple(plain),
        tuple(sealed),
        "" if is_proved else _describe_loss(image, heads, seals),
        _find_refusal(lambda: read_signals(directory, workflow_id, strict)),
    )


def _describe_loss(image: RunImage, heads: Mapping[str, bytes], seals: Seals) -> str:
    try:
        found = find_missing_end(image, heads, seals)
    except (WrongKeyError, ForeignRecordError) as error:
        found = f"the head file of the run cannot be read: {error.message}"
    return f"unknown: {found}" if found.startswith("the head file") else found


def _find_refusal(read: Callable[[], object]) -> str:
    """Return why records cannot be read as authentic; an empty string if they can."""
    try:
        read()
    except (UnauthenticatedRecordError, CheckpointCorruptedError, WrongKeyError, ForeignRecordError) as error:
        return error.message
    return ""
