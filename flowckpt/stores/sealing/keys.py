"""Keys, and what is derived from them. A key itself never touches a record."""

from __future__ import annotations

import hmac
from collections.abc import Sequence

import attrs

SECRET_BYTES = 32
AUTHENTICATE, ENCRYPT = "authenticate", "encrypt"
USES = (AUTHENTICATE, ENCRYPT)
"""What a key is for. Encrypted records are authenticated by the cipher."""

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


def proof_of(key: Key, store_id: str) -> str:
    """Return what only somebody with the key can work out for a store, in hex; it tells nothing of the key.

    Args:
        key: the key.
        store_id: the store.
    """
    bound = derived(key.secret, store_id.encode("utf-8", "surrogatepass"), purpose=b"proof of key")
    return hmac.digest(bound, _PROVED + key.id.encode() + b" " + key.use.encode(), "sha256").hex()


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
    def newest(self) -> Key:
        """The key that is written with."""
        return self.keys[0]

    def get(self, key_id: str) -> Key | None:
        """Return the key of an id, or None.

        Args:
            key_id: what a record says.
        """
        return next((key for key in self.keys if key.id == key_id), None)
