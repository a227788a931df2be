"""Keys, and what is derived from them. A key itself never touches a record."""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import stat
from binascii import Error as Base64Error
from binascii import a2b_base64, b2a_base64
from collections.abc import Sequence
from pathlib import Path
from secrets import token_bytes, token_hex
from typing import Any

import attrs

from flowckpt.core.system.clock import Clock, SystemClock
from flowckpt.core.system.filesystem import sync_directory
from flowckpt.errors import KeyFileError

SECRET_BYTES = 32
AUTHENTICATE, ENCRYPT = "authenticate", "encrypt"
USES = (AUTHENTICATE, ENCRYPT)
"""The uses of a key. Encrypted records are authenticated by the cipher."""

_PROVED = b"a key of this store: "


def derived(secret: bytes, *origin: bytes, purpose: bytes, length: int = 32) -> bytes:
    """Return a key of its own for a purpose and an origin (HKDF of RFC 5869 with SHA-256).

    Args:
        secret: the key that it comes from, random and whole.
        origin: what it is bound to; each part counts with its length, so two lists never run into one.
        purpose: what it is for.
        length: how many bytes, up to 32.
    """
    salt = b"".join(len(part).to_bytes(8, "big") + part for part in origin)
    extracted = hmac.digest(b"flowckpt v1" + salt, secret, "sha256")
    return hmac.digest(extracted, purpose + b"\x01", "sha256")[:length]


@attrs.frozen
class Key:
    """A key: 32 random bytes, and what it is for.

    Attributes:
        secret: the bytes; never shown.
        use: `authenticate` or `encrypt`: what is done to records that are written with it.
        created_at: when it was made, as text; empty where unknown.
        id: what names it in records: 16 hex digits that follow from the secret, so a wrong key is known as one.
    """

    secret: bytes = attrs.field(repr=False)
    use: str = ENCRYPT
    created_at: str = ""
    id: str = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        if len(self.secret) != SECRET_BYTES:
            raise ValueError(f"a key has {SECRET_BYTES} bytes, not {len(self.secret)}")
        if self.use not in USES:
            raise ValueError(f"a key is for one of {', '.join(USES)}, not {self.use!r}")
        object.__setattr__(self, "id", derived(self.secret, purpose=b"id", length=8).hex())

    def proof_for(self, store_id: str) -> str:
        """Return what only a holder of the key can compute for a store, in hex; it reveals nothing of the key.

        Args:
            store_id: the store.
        """
        bound = derived(self.secret, store_id.encode("utf-8", "surrogatepass"), purpose=b"proof of key")
        return hmac.digest(bound, _PROVED + self.id.encode() + b" " + self.use.encode(), "sha256").hex()


class KeyRing:
    """The keys of a store, the newest first: it is the one that is written with; all of them are read with.

    Args:
        keys: at least one.
    """

    def __init__(self, keys: Sequence[Key]) -> None:
        if not keys:
            raise ValueError("a key ring has at least one key")
        self.keys = tuple(keys)

    def __repr__(self) -> str:
        return f"KeyRing({', '.join(key.id for key in self.keys)})"

    @property
    def is_encrypting(self) -> bool:
        """Whether one of the keys encrypts."""
        return any(key.use == ENCRYPT for key in self.keys)

    @property
    def newest(self) -> Key:
        """The key that is written with."""
        return self.keys[0]

    def get(self, key_id: str) -> Key | None:
        """Return the key of an id, or None.

        Args:
            key_id: what a record says.
        """
        return next((key for key in self.keys if key.id == key_id), None)


# Key files: one JSON document with one or several keys, the newest first, that only its owner can read;
# each key has id, use, created_at and secret (BASE64).


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
        KeyFileError: it is missing, can be read by others, or is not a key file.
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
                    f"the key file {shown} is not a regular file", path=shown, remedy="Name the file itself."
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
            remedy=f"Make one with 'flowckpt store key new {shown}', or name the right one.",
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
            sync_directory(target.parent)
        finally:
            with contextlib.suppress(OSError):
                draft.unlink()
    except FileExistsError as error:
        raise KeyFileError(
            f"there is a file {shown} already",
            path=shown,
            remedy=f"Put a new key first in it with 'flowckpt store key rotate {shown}', or choose another name.",
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
        raise _no_key_file(shown, "it is not valid JSON") from None  # the cause would quote what may be a secret
    entries = document.get("keys") if isinstance(document, dict) and document.get("flowckpt") == "keys" else None
    if not isinstance(entries, list) or not entries:
        raise _no_key_file(shown, "it has no keys")
    keys = [_key(entry, number, shown) for number, entry in enumerate(entries, 1)]
    if len({key.id for key in keys}) < len(keys):
        raise _no_key_file(shown, "it has one key twice")
    return keys


def _key(entry: Any, number: int, shown: str) -> Key:
    problem = "is not an object with 'use' and 'secret'"
    if isinstance(entry, dict) and entry.get("secret") in ("", None) and "secret" in entry:
        problem = "has an empty secret"
    elif isinstance(entry, dict) and isinstance(entry.get("secret"), str) and isinstance(entry.get("use"), str):
        try:
            key = Key(a2b_base64(entry["secret"], strict_mode=True), entry["use"], str(entry.get("created_at", "")))
        except (Base64Error, UnicodeEncodeError):
            problem = "has a secret that is not base64"
        except ValueError as error:
            problem = f"cannot be: {error}"
        else:
            if entry.get("id", key.id) == key.id:
                return key
            problem = f"says that its id is {entry['id']!r:.40}, and its secret has the id {key.id}"
    raise _no_key_file(shown, f"key {number} {problem}") from None


def _no_key_file(shown: str, detail: str) -> KeyFileError:
    return KeyFileError(
        f"{shown} is not a key file: {detail}",
        path=shown,
        remedy=f"Restore it from where you keep your keys. 'flowckpt store key new {shown}' makes one for a new store.",
    )


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, _MODE)


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
