"""Which keys are those of a store: notes beside `store.json`, each written once and never changed.

`keys-00000001.json` is one line with a checksum: for each key its id, its use, and a proof that only somebody with the
key can work out for this store. A rotation adds `keys-00000002.json`, and so on. A note is written under a random name,
synced, and *linked* to the number behind the newest note that its writer has read. So of two processes that come with
two keys at once one finds that number taken, reads the other's note, and must have a key of it.
"""

from __future__ import annotations

import contextlib
import hmac
import json
from collections.abc import Iterable, Sequence
from secrets import token_hex
from typing import TYPE_CHECKING

import attrs

from flowckpt.core.system.filesystem import FileSystem
from flowckpt.core.system.process import current_process
from flowckpt.errors import CheckpointCorruptedError, WrongKeyError
from flowckpt.stores.file.layout import keys_name, keys_numbers, temporary_name
from flowckpt.stores.log.line import START, TRAILER, opened, seal
from flowckpt.stores.log.sealing.keys import proof_of

if TYPE_CHECKING:
    from flowckpt.stores.log.sealing.keys import Key, KeyRing


_MOST_BYTES = 1 << 16


@attrs.frozen
class KnownKey:
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
    """Return the keys of a store, the newest note first; nothing where there is no note yet.

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
    file = filesystem.open_read(root, name)
    try:
        line, end, rest = filesystem.read(file, _MOST_BYTES, 0).partition(b"\n")
    finally:
        filesystem.close(file)
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
            if not hmac.compare_digest(proof_of(attrs.evolve(key, use=each.use), store_id), each.proof):
                raise _damaged(each.place, f"it does not prove key {each.id} for the store {store_id}")
            is_ours = True
    if not is_ours:
        raise WrongKeyError(workflow_id, key_id=known[0].id, known=[key.id for key in ring.keys], is_whole_store=True)


def add_known(filesystem: FileSystem, root: int, keys: Iterable[Key], store_id: str, known: Sequence[KnownKey]) -> None:
    """Write a note of keys, durably, unless another process has written one in its place.

    Its number comes from the notes that were read, and not from the names that are there by now: a note that came in
    between was held against nobody's keys yet.

    Args:
        filesystem: the calls.
        root: the store's directory, open.
        keys: the keys, the newest first.
        store_id: the store.
        known: what `read_known` has returned, and the keys were held against.
    """
    number = max([*keys_numbers([each.place for each in known]), 0]) + 1
    said = [{"id": key.id, "use": key.use, "proof": proof_of(key, store_id)} for key in keys]
    document = {"flowckpt": "keys", "schema_version": 1, "store_id": store_id, "keys": said}
    text, _ = seal(json.dumps(document, separators=(",", ":"))[:-1].encode(), START)
    name = temporary_name(current_process(), token_hex(8))
    file = filesystem.create(root, name)
    try:
        written = 0
        while written < len(text):
            written += filesystem.write(file, text[written:])
        filesystem.sync(file)
        try:
            filesystem.link(root, name, keys_name(number))
        except FileExistsError:
            return
    finally:
        filesystem.close(file)
        with contextlib.suppress(OSError):
            filesystem.unlink(root, name)
    filesystem.sync(root)


def _damaged(name: str, detail: str) -> CheckpointCorruptedError:
    return CheckpointCorruptedError(
        "",
        location=name,
        detail=detail,
        remedy=f"Nothing was changed. Restore {name} from a backup; or move it away: then the next write with the right "
        "key proves that key by the records of the store, and notes it anew.",
    )
