"""Keys and derived keys. A key itself is never used on a record."""

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


def derive_key(secret: bytes, *origin: bytes, purpose: bytes, length: int = 32) -> bytes:
    """Derive a key for a purpose and an origin (HKDF of RFC 5869 with SHA-256).

    Args:
        secret: the master key, fully random.
        origin: the parts it is bound to; each part is hashed with its length, so two lists never collide.
        purpose: the use of the derived key.
        length: the number of bytes, up to 32.
    """
    salt = b"".join(len(part).to_bytes(8, "big") + part for part in origin)
    extracted = hmac.digest(b"flowckpt v1" + salt, secret, "sha256")
    return hmac.digest(extracted, purpose + b"\x01", "sha256")[:length]


@attrs.frozen
class Key:
    """A key: 32 random bytes, and its use.

    Attributes:
        secret: the bytes; never shown.
        use: `authenticate` or `encrypt`: what is done to records written with this key.
        created_at: when it was made, as text; empty if unknown.
        id: its name in records: 16 hex digits derived from the secret, so a wrong key is recognised.
    """

    secret: bytes = attrs.field(repr=False)
    use: str = ENCRYPT
    created_at: str = ""
    id: str = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        if len(self.secret) != SECRET_BYTES:
            raise ValueError(f"a key has {SECRET_BYTES} bytes, not {len(self.secret)}")
        if self.use not in USES:
            raise ValueError(f"the use of a key is one of {', '.join(USES)}, not {self.use!r}")
        object.__setattr__(self, "id", derive_key(self.secret, purpose=b"id", length=8).hex())

    def make_proof(self, store_id: str) -> str:
        """Return a proof for a store, in hex, which only a holder of the key can compute; it reveals nothing about the key.

        Args:
            store_id: the store.
        """
        bound = derive_key(self.secret, store_id.encode("utf-8", "surrogatepass"), purpose=b"proof of key")
        return hmac.digest(bound, _PROVED + self.id.encode() + b" " + self.use.encode(), "sha256").hex()


class KeyRing:
    """The keys of a store, newest first. The newest is used for writing, all of them for reading.

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
        """The key used for writing."""
        return self.keys[0]

    def get(self, key_id: str) -> Key | None:
        """Return the key of an id, or None.

        Args:
            key_id: the id in a record.
        """
        return next((key for key in self.keys if key.id == key_id), None)


# Key files: one JSON document with one or several keys, newest first, readable only by its owner;
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
        KeyFileError: the file is missing, readable by other users, or not a key file.
    """
    shown = os.fspath(path)
    if not shown:
        raise KeyFileError(
            "the name of the key file is empty",
            path=shown,
            remedy="Name the file, or remove the setting for a store without a key.",
        )
    try:
        with open(path, "rb", opener=_open_nonblocking) as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise KeyFileError(
                    f"the key file {shown} is not a regular file", path=shown, remedy="Name the file itself."
                )
            if found.st_mode & _OTHERS:
                raise KeyFileError(
                    f"the key file {shown} is accessible to other users: its mode is {stat.S_IMODE(found.st_mode):04o}",
                    path=shown,
                    remedy=f"Run: chmod 600 {shown}",
                )
            text = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise KeyFileError(
            f"the key file {shown} cannot be read: {error.strerror}",
            path=shown,
            remedy=f"Create one with 'flowckpt store key new {shown}', or correct the path.",
        ) from error
    if len(text) > _MOST_BYTES:
        raise _key_file_error(shown, "it is too large")
    return KeyRing(_parse_keys(text, shown))


def write_key_file(path: str | os.PathLike[str], keys: Sequence[Key], *, is_new: bool) -> None:
    """Write a key file, mode 0600, durably and atomically.

    Args:
        path: the file.
        keys: the keys, newest first.
        is_new: refuse to replace an existing file.

    Raises:
        KeyFileError: the file already exists, or cannot be written.
    """
    target, shown = Path(path), os.fspath(path)
    draft = target.with_name(f".{target.name}.{token_hex(8)}")
    try:
        try:
            with open(draft, "xb", opener=_open_private) as file:
                file.write(_encode_keys(keys))
                file.flush()
                os.fsync(file.fileno())
            if is_new:
                os.link(draft, target)  # never replaces a file: records sealed with a lost key are lost
            else:
                draft.replace(target)
            sync_directory(target.parent)
        finally:
            with contextlib.suppress(OSError):
                draft.unlink()
    except FileExistsError as error:
        raise KeyFileError(
            f"the file {shown} already exists",
            path=shown,
            remedy=f"Add a new key to it with 'flowckpt store key rotate {shown}', or choose another name.",
        ) from error
    except OSError as error:
        raise KeyFileError(
            f"the key file {shown} cannot be written: {error.strerror}",
            path=shown,
            remedy="Choose an existing, writable directory.",
        ) from error


def _encode_keys(keys: Sequence[Key]) -> bytes:
    entries = [
        {
            "id": key.id,
            "use": key.use,
            "created_at": key.created_at,
            "secret": b2a_base64(key.secret, newline=False).decode(),
        }
        for key in keys
    ]
    return json.dumps({"flowckpt": "keys", "keys": entries}, indent=2).encode() + b"\n"


def _parse_keys(text: bytes, shown: str) -> list[Key]:
    if not text.strip():
        raise _key_file_error(shown, "it is empty")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        # without the cause, which would quote text that may be a secret
        raise _key_file_error(shown, "it is not valid JSON") from None
    entries = document.get("keys") if isinstance(document, dict) and document.get("flowckpt") == "keys" else None
    if not isinstance(entries, list) or not entries:
        raise _key_file_error(shown, "it has no keys")
    keys = [_parse_key(entry, number, shown) for number, entry in enumerate(entries, 1)]
    if len({key.id for key in keys}) < len(keys):
        raise _key_file_error(shown, "it has a duplicate key")
    return keys


def _parse_key(entry: Any, number: int, shown: str) -> Key:
    problem = "is not an object with 'use' and 'secret'"
    if isinstance(entry, dict) and entry.get("secret") in ("", None) and "secret" in entry:
        problem = "has an empty secret"
    elif isinstance(entry, dict) and isinstance(entry.get("secret"), str) and isinstance(entry.get("use"), str):
        try:
            key = Key(a2b_base64(entry["secret"], strict_mode=True), entry["use"], str(entry.get("created_at", "")))
        except (Base64Error, UnicodeEncodeError):
            problem = "has a secret that is not base64"
        except ValueError as error:
            problem = f"is invalid: {error}"
        else:
            if entry.get("id", key.id) == key.id:
                return key
            problem = f"has the id {entry['id']!r:.40}, but its secret has the id {key.id}"
    raise _key_file_error(shown, f"key {number} {problem}") from None


def _key_file_error(shown: str, detail: str) -> KeyFileError:
    return KeyFileError(
        f"{shown} is not a key file: {detail}",
        path=shown,
        remedy=f"Restore it from your backup of the keys. 'flowckpt store key new {shown}' creates one for a new store.",
    )


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, _MODE)


def _open_nonblocking(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
