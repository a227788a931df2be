"""The identity of a store that is protected by a key: made once, durable, and named by whatever is sealed in it.

`store.json` in the store's directory. That it is there says, too, that nobody writes to the store without a key. A store
that was never given a key has none.
"""

from __future__ import annotations

import contextlib
import json

from flowckpt.chance import new_token
from flowckpt.errors import CheckpointCorruptedError
from flowckpt.filesystem import FileSystem
from flowckpt.process import current_process, is_alive
from flowckpt.stores.file.names import IDENTITY, maker_of_temporary, temporary_name


def read_identity(filesystem: FileSystem, root: int) -> str | None:
    """Return the identity of a store, or None where it has none.

    Args:
        filesystem: the calls.
        root: the store's directory, open.

    Raises:
        CheckpointCorruptedError: the file is there and says nothing.
    """
    if not filesystem.exists(root, IDENTITY):
        return None
    file = filesystem.open_read(root, IDENTITY)
    try:
        text = filesystem.read(file, 4096, 0)
    finally:
        filesystem.close(file)
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


def sweep_root(filesystem: FileSystem, root: int) -> None:
    """Remove what processes left that died while they made an identity.

    Args:
        filesystem: the calls.
        root: the store's directory, open.
    """
    here = current_process()
    for name in filesystem.names(root):
        maker = maker_of_temporary(name, here)
        if maker is not None and maker != here and is_alive(maker) is False:
            with contextlib.suppress(FileNotFoundError):
                filesystem.unlink(root, name)


def make_identity(filesystem: FileSystem, root: int) -> str:
    """Return the identity of a store that had none, made durable; or that which another process has made meanwhile.

    Args:
        filesystem: the calls.
        root: the store's directory, open.
    """
    name = temporary_name(current_process(), new_token(8))
    text = json.dumps({"flowckpt": "store", "schema_version": 1, "store_id": new_token(16)}).encode() + b"\n"
    file = filesystem.create(root, name)
    try:
        written = 0
        while written < len(text):
            written += filesystem.write(file, text[written:])
        filesystem.sync(file)
        with contextlib.suppress(FileExistsError):
            filesystem.link(root, name, IDENTITY)
    finally:
        filesystem.close(file)
        with contextlib.suppress(OSError):
            filesystem.unlink(root, name)
    filesystem.sync(root)
    found = read_identity(filesystem, root)
    assert found is not None
    return found
