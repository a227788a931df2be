"""The keys of a protected store: only their holders may write, and without encryption everybody may read."""

from __future__ import annotations

import contextlib
import hmac
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import attrs

from flowckpt.core.codec.blob import Fetch
from flowckpt.core.system.attrs_base import FieldEquality, lazy_frozen
from flowckpt.core.system.filesystem import FileSystem, held_open, open_if_there
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
    heads_in,
    read_file,
    read_image,
    read_lines,
    sweep_abandoned,
    what_is_cut,
    write_new,
)
from flowckpt.stores.file.layout import (
    HEAD,
    IDENTITY,
    NOT_OURS,
    RUNS,
    is_temporary,
    keys_name,
    keys_numbers,
    segment_name,
    segment_numbers,
)
from flowckpt.stores.file.signals import read_signals
from flowckpt.stores.log.image import RunImage, opened_header
from flowckpt.stores.log.sealing.protection import Seals
from flowckpt.stores.log.segment import START, TRAILER, SegmentDamagedError, chain_line, opened, read_header

if TYPE_CHECKING:
    from flowckpt.stores.log.sealing.keys import Key, KeyRing


# The identity of a store that is protected by a key: made once, durable, and named by whatever is sealed in it.
#
# `store.json` in the store's directory. That it is there says, too, that no process writes to the store without a key. A store
# that was never given a key has none.


def read_identity(filesystem: FileSystem, root: int) -> str | None:
    """Return the identity of a store, or None if it has none.

    Args:
        filesystem: the calls.
        root: the store's directory, open.

    Raises:
        CheckpointCorruptedError: the file is there and says nothing.
    """
    if not filesystem.exists(root, IDENTITY):
        return None
    with held_open(filesystem, filesystem.open_read(root, IDENTITY)) as file:
        text = filesystem.read(file, 4096, 0)
    try:
        found = json.loads(text)["store_id"]
    except (ValueError, LookupError, TypeError):
        found = None
    if type(found) is not str or not found:
        raise CheckpointCorruptedError(
            "",
            location=IDENTITY,
            detail="it does not say which store this is",
            remedy='Restore it from a backup, or write {"flowckpt":"store","store_id":"…"}: the header of each segment '
            "has the id, as 'store'.",
        )
    return found


def make_identity(filesystem: FileSystem, root: int) -> str:
    """Return the identity of a store that had none, made durable; or that which another process has made meanwhile.

    Args:
        filesystem: the calls.
        root: the store's directory, open.
    """
    text = json.dumps({"flowckpt": "store", "schema_version": 1, "store_id": new_token(16)}).encode() + b"\n"
    write_new(filesystem, root, IDENTITY, text)
    filesystem.sync(root)
    found = read_identity(filesystem, root)
    assert found is not None
    return found


_TRIES = 100
_LOOKS = 32
"""Runs that are looked at for a seal in a store that has none itself: each costs 40 µs, in every process that writes."""


class Guard:
    """Refuses who has not the key of a store, before anything is changed.

    Args:
        store_id: returns the identity of the store, or None if it has none.
    """

    def __init__(self, filesystem: FileSystem, seals: Seals, store_id: Callable[[], str | None]) -> None:
        self._filesystem = filesystem
        self._seals = seals
        self._store_id = store_id
        self._is_plain = False
        self._is_reader_known = False
        self._settled: str | None = None

    def check_writer(self, root: int, workflow_id: str) -> None:
        """Refuse a change by who has no key, or another one than the store's; note a key that was put before it.

        Args:
            root: the store's directory, open.
            workflow_id: the run that is to be changed; an empty text for the store.

        Raises:
            KeyMissingError: the store is protected by a key, and there is none.
            WrongKeyError: none of the keys is one of the store's.
            CheckpointCorruptedError: runs are sealed, and the store has lost its identity; or a note of its keys is
                damaged.
        """
        ring = self._seals.protection.ring
        if not self._has_identity(root):
            return
        if ring is None:
            raise KeyMissingError(workflow_id, key_id=self._newest_key(root))
        self._settle_keys(root, ring, workflow_id)

    def check_reader(self, root: int, workflow_id: str) -> None:
        """Refuse to read with a key that is not the store's. Without a key, everything that is not encrypted can be read.

        Args:
            root: the store's directory, open.
            workflow_id: the run that is asked for; an empty text for the store.

        Raises:
            WrongKeyError: none of the keys is one of the store's.
            CheckpointCorruptedError: runs are sealed, and the store has lost its identity; or a note of its keys is
                damaged.
        """
        ring = self._seals.protection.ring
        if ring is None or self._is_reader_known or not self._has_identity(root):
            return
        store_id = self._store_id()
        if store_id is None:  # taken away just now: each record says so
            return
        known = read_known(self._filesystem, root)
        if known:  # else every record speaks for itself
            check_ring(ring, known, store_id, workflow_id)
            self._is_reader_known = True

    def make_identity(self, root: int, workflow_id: str) -> None:
        """Make sure that a store has an identity, and knows the key, before anything is sealed in it.

        Args:
            root: the store's directory, open, and synced just now: an identity that another process has made is durable.
            workflow_id: the run that is about to be written.

        Raises:
            WrongKeyError: none of the keys is one of the store's.
            CheckpointCorruptedError: runs are sealed, and the store has lost its identity.
        """
        ring = self._seals.protection.ring
        if ring is None:
            return
        filesystem = self._filesystem
        sweep_abandoned(filesystem, root)
        if read_identity(filesystem, root) is None:
            is_sealed = keys_numbers(filesystem.names(root)) or any(sealed_segments(filesystem, root))
            if is_sealed and not filesystem.exists(root, IDENTITY):  # else another process made all of it just now
                raise lost_identity(filesystem, root)
            make_identity(filesystem, root)
        self._settle_keys(root, ring, workflow_id)

    def _settle_keys(self, root: int, ring: KeyRing, workflow_id: str) -> None:
        """Make sure that the store knows the key that is written with, which must be its own or come with one that is."""
        filesystem = self._filesystem
        store_id = read_identity(filesystem, root)
        if store_id is None or store_id == self._settled:
            return
        for _ in range(_TRIES):
            known = read_known(filesystem, root)
            if known:
                check_ring(ring, known, store_id, workflow_id)
                if any((each.id, each.use) == (ring.newest.id, ring.newest.use) for each in known):
                    self._settled = store_id
                    return
                keys = [ring.newest]
            else:
                proved = self._proved_keys(root, ring, workflow_id)
                keys = [ring.newest, *(key for key in proved if key != ring.newest)]
            # Another process may have made the identity that the note names, and not synced it yet.
            filesystem.sync(root)
            add_known(filesystem, root, keys, store_id, known)
        raise CheckpointStorageError(
            f"the keys of the store change faster than one could be noted for run {workflow_id!r}",
            workflow_id=workflow_id,
            operation="save",
        )

    def _proved_keys(self, root: int, ring: KeyRing, workflow_id: str) -> list[Key]:
        """Return the keys at hand that a record of the store proves, where it was made before its keys were noted.

        Raises:
            WrongKeyError: there are sealed records, and none of the keys opens one.
        """
        foreign = ""
        proved: dict[str, Key] = {}
        for segment in sealed_segments(self._filesystem, root):
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

    def _has_identity(self, root: int) -> bool:
        """Return whether the store has an identity.

        Raises:
            CheckpointCorruptedError: it has none, and was sealed: somebody has taken it away.
        """
        filesystem = self._filesystem
        if filesystem.exists(root, IDENTITY):
            return True
        if not self._is_plain:
            if keys_numbers(filesystem.names(root)) or has_sealed_run(filesystem, root, most=_LOOKS):
                if filesystem.exists(root, IDENTITY):  # another process made it just now, and then all else
                    return True
                raise lost_identity(filesystem, root)
            self._is_plain = True
        return False

    def _newest_key(self, root: int) -> str:
        try:
            known = read_known(self._filesystem, root)
        except CheckpointCorruptedError:  # which key it is only helps
            return ""
        return known[0].id if known else ""


# What the runs of a store say of its keys, where the store itself does not: found without opening a record.


@lazy_frozen(eq=False, repr=False)
class SealedSegment:
    """A segment whose header says that it is sealed.

    Attributes:
        workflow_id: the run, as the header says.
        number: the segment.
        key_id: the key, as the header says.
        store_id: the store, as the header says.
        header: the bytes of the header, with its line feed.
    """

    workflow_id: str
    number: int
    key_id: str
    store_id: str
    header: bytes

    def is_proved_by(self, seals: Seals) -> bool:
        """Return whether the header opens with a key that is at hand."""
        try:
            _, seal = opened_header(self.workflow_id, self.number, self.header, seals)
        except FlowckptError:
            return False
        return seal is not None and seal.is_verified


def has_sealed_run(filesystem: FileSystem, root: int, *, most: int | None = None) -> bool:
    """Return whether a run of a store was written with a key: each such run has word of how far it has come.

    Args:
        filesystem: the calls.
        root: the store's directory, open.
        most: how many runs are looked at; all of them where not given.
    """
    found = islice(_run_directories(filesystem, root), most)
    return any(name.startswith(HEAD) for _, names in found for name in names)


def sealed_segments(filesystem: FileSystem, root: int) -> Iterator[SealedSegment]:
    """Return the sealed segments of a store, run by run, the newest of each run first.

    Args:
        filesystem: the calls.
        root: the store's directory, open.
    """
    for directory, names in _run_directories(filesystem, root):
        for number in reversed(segment_numbers(names)):
            with _without_foreign():
                data = read_lines(filesystem, directory, segment_name(number), 1)
                header, end, _ = read_header(data)
                said: Any = header["seal"]
                yield SealedSegment(
                    str(header["workflow_id"]), number, str(said["key"]), str(said["store"]), data[:end]
                )


def plain_runs(filesystem: FileSystem, root: int) -> list[str]:
    """Return the ids of the runs whose newest segment was written without a key.

    Args:
        filesystem: the calls.
        root: the store's directory, open.
    """
    found = []
    for directory, names in _run_directories(filesystem, root):
        numbers = segment_numbers(names)
        with _without_foreign():
            header, _, _ = read_header(read_lines(filesystem, directory, segment_name(numbers[-1]), 1))
            if "seal" not in header and header.get("kind") != "cleared":
                found.append(str(header["workflow_id"]))
    return found


def lost_identity(filesystem: FileSystem, root: int) -> CheckpointCorruptedError:
    """Return the error for a store that has sealed runs, or notes of its keys, and no identity.

    Args:
        filesystem: the calls.
        root: the store's directory, open.
    """
    store_id, key_id = _named_by(filesystem, root)
    detail = "it is missing, and runs in the store are sealed with a key"
    anew = ""
    if store_id:
        detail = f"it is missing, and what lies in the store names the store {store_id} and the key {key_id}"
        anew = f'{{"flowckpt":"store","schema_version":1,"store_id":"{store_id}"}}'
    return CheckpointCorruptedError(
        "",
        location=IDENTITY,
        detail=detail,
        remedy="Nothing was changed. Restore it from a backup" + (f", or write it again: {anew}" if anew else "."),
    )


def _named_by(filesystem: FileSystem, root: int) -> tuple[str, str]:
    """Return the store and a key that a sealed run names, or else a note of keys; empty texts where none does."""
    for segment in sealed_segments(filesystem, root):
        return segment.store_id, segment.key_id
    with contextlib.suppress(CheckpointCorruptedError, OSError):
        for known in read_known(filesystem, root):
            return known.store_id, known.id
    return "", ""


@contextlib.contextmanager
def _without_foreign() -> Iterator[None]:
    """Skip what is not a segment of ours for the block; an error of the disk is raised: it says nothing about the file."""
    try:
        with contextlib.suppress(SegmentDamagedError, ValueError, LookupError, TypeError):
            yield
    except OSError as error:
        if error.errno not in NOT_OURS:
            raise


def _run_directories(filesystem: FileSystem, root: int) -> Iterator[tuple[int, list[str]]]:
    """Open the directory of each run for a while, with the names in it; skip everything else."""
    with open_if_there(filesystem, filesystem.open_directory, root, RUNS) as runs:
        for name in sorted(() if runs is None else filesystem.names(runs)):
            if runs is None or is_temporary(name):  # it is being received, and is not a run yet
                continue
            try:
                opened = filesystem.open_directory(runs, name)
            except OSError as error:
                if error.errno not in NOT_OURS:
                    raise
                continue
            with held_open(filesystem, opened) as directory:
                yield directory, filesystem.names(directory)


# Which keys are those of a store: notes beside `store.json`, each written once and never changed.
#
# `keys-00000001.json` is one line with a checksum: for each key its id, its use, and a proof that only somebody with the
# key can work out for this store. A rotation adds `keys-00000002.json`, and so on. A note is written under a random name,
# synced, and *linked* to the number behind the newest note that its writer has read. So of two processes that come with
# two keys at once one finds that number taken, reads the other's note, and must have a key of it.


_MOST_BYTES = 1 << 16


@lazy_frozen(eq=False, repr=False)
class KnownKey(FieldEquality):
    """A key that the store is sealed with, as its note says.

    Attributes:
        id: the key's id.
        use: what it is for.
        store_id: the store.
        proof: what only somebody with the key can work out.
        place: the note that says so.
    """

    id: str
    use: str
    store_id: str
    proof: str
    place: str


def read_known(filesystem: FileSystem, root: int) -> list[KnownKey]:
    """Return the keys of a store, the newest note first; nothing if there is no note yet.

    Args:
        filesystem: the calls.
        root: the store's directory, open.

    Raises:
        CheckpointCorruptedError: a note is damaged.
    """
    found: list[KnownKey] = []
    for number in reversed(keys_numbers(filesystem.names(root))):
        found += _read(filesystem, root, keys_name(number))
    return found


def _read(filesystem: FileSystem, root: int, name: str) -> list[KnownKey]:
    with held_open(filesystem, filesystem.open_read(root, name)) as file:
        line, end, rest = filesystem.read(file, _MOST_BYTES, 0).partition(b"\n")
    if not end or rest or opened(line, START) is None:
        raise _damaged(name, "its checksum does not hold")
    try:
        said = json.loads(line[: len(line) - TRAILER] + b"}")
        store_id = str(said["store_id"])
        found = [
            KnownKey(str(each["id"]), str(each["use"]), store_id, str(each["proof"]), name) for each in said["keys"]
        ]
    except (ValueError, LookupError, TypeError) as error:
        raise _damaged(name, f"it does not say which keys the store has: {error!r:.80}") from error
    if not found:
        raise _damaged(name, "it names no key")
    return found


def check_ring(ring: KeyRing, known: Sequence[KnownKey], store_id: str, workflow_id: str) -> None:
    """Refuse keys of which none is the store's.

    Args:
        ring: the keys at hand.
        known: those of the store; at least one.
        store_id: the store.
        workflow_id: the run that somebody asked for, for errors; an empty text for none.

    Raises:
        WrongKeyError: none of them is one of the store's.
        CheckpointCorruptedError: a note names a key that is at hand, and does not prove it.
    """
    is_ours = False
    for each in known:
        key = ring.get(each.id)
        if key is not None:
            if not hmac.compare_digest(attrs.evolve(key, use=each.use).proof_for(store_id), each.proof):
                raise _damaged(each.place, f"it does not prove key {each.id} for the store {store_id}")
            is_ours = True
    if not is_ours:
        raise WrongKeyError(workflow_id, key_id=known[0].id, known=[key.id for key in ring.keys], is_whole_store=True)


def add_known(filesystem: FileSystem, root: int, keys: Iterable[Key], store_id: str, known: Sequence[KnownKey]) -> None:
    """Write a note of keys, durably, unless another process has written one in its place.

    Its number comes from the notes that were read, and not from the names that are there by now: a note that came in
    between was not yet checked with any key.

    Args:
        filesystem: the calls.
        root: the store's directory, open.
        keys: the keys, the newest first.
        store_id: the store.
        known: what `read_known` has returned, and the keys were held against.
    """
    number = max([*keys_numbers([each.place for each in known]), 0]) + 1
    said = [{"id": key.id, "use": key.use, "proof": key.proof_for(store_id)} for key in keys]
    document = {"flowckpt": "keys", "schema_version": 1, "store_id": store_id, "keys": said}
    text, _ = chain_line(json.dumps(document, separators=(",", ":"))[:-1].encode(), START)
    if write_new(filesystem, root, keys_name(number), text):
        filesystem.sync(root)


def _damaged(name: str, detail: str) -> CheckpointCorruptedError:
    return CheckpointCorruptedError(
        "",
        location=name,
        detail=detail,
        remedy=f"Nothing was changed. Restore {name} from a backup; or move it away: then the next write with the right "
        "key proves that key by the records of the store, and notes it again.",
    )


# What a run does not prove with the key: what somebody takes for true who trusts it anyway.


@lazy_frozen(eq=False, repr=False)
class TrustReport(FieldEquality):
    """The parts of a run that the key proves, and those that it does not.

    Attributes:
        workflow_id: the run.
        checkpoints: how many it has, as it is now.
        results: how many results, likewise.
        is_proved: whether it proves itself as it is, so that nothing is to be taken on trust.
        plain: the segments of it that were written without a key.
        sealed: the segments of it that were opened with the key, and hold.
        lost: what is known to be missing at its end, or why that is unknown; empty if nothing is.
        message: why its messages are refused, and stay so; empty if they are not.
    """

    workflow_id: str
    checkpoints: int
    results: int
    is_proved: bool
    plain: tuple[str, ...] = ()
    sealed: tuple[str, ...] = ()
    lost: str = ""
    message: str = ""


def trust_report(filesystem: FileSystem, directory: int, workflow_id: str, fetch: Fetch, seals: Seals) -> TrustReport:
    """Return what a run proves, and what it does not.

    Args:
        filesystem: the calls.
        directory: the run's directory, open.
        workflow_id: the run.
        fetch: reads large values.
        seals: the seals of the store, which was told to trust.

    Raises:
        CheckpointCorruptedError: what is sealed does not open, or a record is damaged: that cannot be trusted.
        FileNotFoundError: it was cleared or compacted meanwhile; look again.
    """
    heads = heads_in(filesystem, directory)
    image = read_image(filesystem, directory, workflow_id, fetch, seals=seals)
    strict = seals.not_trusting()
    try:
        read_image(filesystem, directory, workflow_id, fetch, seals=strict)
        is_proved = True
    except (UnauthenticatedRecordError, CheckpointCorruptedError, WrongKeyError, ForeignRecordError):
        is_proved = False
    plain: list[str] = []
    sealed: list[str] = []
    for number in sorted({record.file for record in image.records}):
        _, seal = opened_header(workflow_id, number, read_file(filesystem, directory, segment_name(number)), seals)
        (plain if seal is None else sealed).append(segment_name(number))
    return TrustReport(
        workflow_id,
        len(image.checkpoints()),
        len(image.history.results),
        is_proved,
        tuple(plain),
        tuple(sealed),
        "" if is_proved else _lost(image, heads, seals),
        _refused_message(filesystem, directory, workflow_id, strict),
    )


def _lost(image: RunImage, heads: Mapping[str, bytes], seals: Seals) -> str:
    try:
        found = what_is_cut(image, heads, seals)
    except (WrongKeyError, ForeignRecordError) as error:
        found = f"the word of how far the run has come cannot be read: {error.message}"
    return f"unknown: {found}" if found.startswith("the word") else found


def _refused_message(filesystem: FileSystem, directory: int, workflow_id: str, strict: Seals) -> str:
    try:
        read_signals(filesystem, directory, workflow_id, strict)
    except (UnauthenticatedRecordError, CheckpointCorruptedError, WrongKeyError, ForeignRecordError) as error:
        return error.message
    return ""
