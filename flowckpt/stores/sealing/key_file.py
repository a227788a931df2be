"""Key files: one JSON document with one or several keys, the newest first, that only its owner can read.

::

    {"flowckpt": "keys", "keys": [{"id": "…", "use": "encrypt", "created_at": "…", "secret": "BASE64"}]}
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from binascii import Error as Base64Error
from binascii import a2b_base64, b2a_base64
from collections.abc import Sequence
from pathlib import Path
from secrets import token_bytes, token_hex
from typing import Any

from flowckpt.clock import Clock, SystemClock
from flowckpt.errors import KeyFileError
from flowckpt.stores.sealing.keys import ENCRYPT, SECRET_BYTES, Key, KeyRing

_MOST_BYTES = 1 << 20
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_MODE = 0o600


def new_key(use: str = ENCRYPT, *, clock: Clock | None = None) -> Key:
    """Return a new random key.

    Args:
        use: `encrypt` or `authenticate`.
        clock: the time, for tests.
    """
    made_at = (clock or SystemClock()).now()
    return Key(token_bytes(SECRET_BYTES), use, made_at.isoformat(timespec="seconds").replace("+00:00", "Z"))


def read_key_file(path: str | os.PathLike[str]) -> KeyRing:
    """Return the keys of a file.

    Args:
        path: the file.

    Raises:
        KeyFileError: it is missing, can be read by others, or is no key file.
    """
    shown = os.fspath(path)
    if not shown:
        raise KeyFileError(
            "the key file has no name: it was given as an empty text",
            path=shown,
            remedy="Name the file, or leave the setting out for a store without a key.",
        )
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise KeyFileError(
                    f"the key file {shown} is no regular file", path=shown, remedy="Name the file itself."
                )
            if found.st_mode & _OTHERS:
                raise KeyFileError(
                    f"others than its owner may use the key file {shown}: its mode is {stat.S_IMODE(found.st_mode):04o}",
                    path=shown,
                    remedy=f"Run: chmod 600 {shown}",
                )
            text = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise KeyFileError(
            f"the key file {shown} cannot be read: {error.strerror}",
            path=shown,
            remedy=f"Make one with 'flowckpt key new {shown}', or name the right one.",
        ) from error
    if len(text) > _MOST_BYTES:
        raise _no_key_file(shown, "it is larger than any")
    return KeyRing(_parsed(text, shown))


def write_key_file(path: str | os.PathLike[str], keys: Sequence[Key], *, is_new: bool) -> None:
    """Write a key file, mode 0600, durably: first under another name, so a crash leaves the old one or the new one.

    Args:
        path: the file.
        keys: the keys, the newest first.
        is_new: refuse where the file exists; else it is replaced.

    Raises:
        KeyFileError: it exists already, or cannot be written.
    """
    target, shown = Path(path), os.fspath(path)
    draft = target.with_name(f".{target.name}.{token_hex(8)}")
    try:
        try:
            with open(draft, "xb", opener=_private) as file:
                file.write(_document(keys))
                file.flush()
                os.fsync(file.fileno())
            if is_new:
                os.link(draft, target)  # never replaces: a key that is lost takes what it locked with it
            else:
                draft.replace(target)
            directory = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
        finally:
            with contextlib.suppress(OSError):
                draft.unlink()
    except FileExistsError as error:
        raise KeyFileError(
            f"there is a file {shown} already",
            path=shown,
            remedy=f"Put a new key first in it with 'flowckpt key rotate {shown}', or choose another name.",
        ) from error
    except OSError as error:
        raise KeyFileError(
            f"the key file {shown} cannot be written: {error.strerror}",
            path=shown,
            remedy="Choose a directory that exists and that you may write to.",
        ) from error


def _document(keys: Sequence[Key]) -> bytes:
    said = [
        {
            "id": key.id,
            "use": key.use,
            "created_at": key.created_at,
            "secret": b2a_base64(key.secret, newline=False).decode(),
        }
        for key in keys
    ]
    return json.dumps({"flowckpt": "keys", "keys": said}, indent=2).encode() + b"\n"


def _parsed(text: bytes, shown: str) -> list[Key]:
    if not text.strip():
        raise _no_key_file(shown, "it is empty")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise _no_key_file(shown, "it is no JSON") from None  # the cause would quote what may be a secret
    entries = document.get("keys") if isinstance(document, dict) and document.get("flowckpt") == "keys" else None
    if not isinstance(entries, list) or not entries:
        raise _no_key_file(shown, "it has no keys")
    keys = [_key(entry, number, shown) for number, entry in enumerate(entries, 1)]
    if len({key.id for key in keys}) < len(keys):
        raise _no_key_file(shown, "it has one key twice")
    return keys


def _key(entry: Any, number: int, shown: str) -> Key:
    problem = "is no object with 'use' and 'secret'"
    if isinstance(entry, dict) and entry.get("secret") in ("", None) and "secret" in entry:
        problem = "has an empty secret"
    elif isinstance(entry, dict) and isinstance(entry.get("secret"), str) and isinstance(entry.get("use"), str):
        try:
            key = Key(a2b_base64(entry["secret"], strict_mode=True), entry["use"], str(entry.get("created_at", "")))
        except (Base64Error, UnicodeEncodeError):
            problem = "has a secret that is no base64"
        except ValueError as error:
            problem = f"cannot be: {error}"
        else:
            if entry.get("id", key.id) == key.id:
                return key
            problem = f"says that its id is {entry['id']!r:.40}, and its secret has the id {key.id}"
    raise _no_key_file(shown, f"key {number} {problem}") from None


def _no_key_file(shown: str, detail: str) -> KeyFileError:
    return KeyFileError(
        f"{shown} is no key file: {detail}",
        path=shown,
        remedy=f"Restore it from where you keep your keys. 'flowckpt key new {shown}' makes one for a new store.",
    )


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, _MODE)


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
