"""Large values, sealed: files of their own, named after their content.

What a value is, is proved by its SHA-256 in the record that names it; so a value is packed or encrypted, and never
needs to be authenticated beside. How it is kept, its name says:

- `DIGEST`: as it is;
- `DIGEST.gz`, `DIGEST.zst`: packed, a file that `zcat` or `zstdcat` reads;
- `KEYED.sealed`: encrypted. `KEYED` is a keyed digest of the digest, so the name tells nothing of the content to who
  does not have the key. Two runs of a store have the same name for the same value, and can share the file.

A sealed file is a line of JSON (which key, a random value, how it was packed) and the encrypted bytes. The random value
makes the key that it is encrypted with its own.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Callable
from secrets import token_hex

from flowckpt.stores.log.sealing.cipher import PART, TAG, Cipher
from flowckpt.stores.log.sealing.compression import GZIP, ZSTD, packed, unpacked
from flowckpt.stores.log.sealing.keys import ENCRYPT, Key, KeyRing, derived
from flowckpt.stores.log.sealing.protection import SealBrokenError

_SUFFIXES = {GZIP: ".gz", ZSTD: ".zst"}
_METHODS = {suffix: method for method, suffix in _SUFFIXES.items()}
SEALED = ".sealed"
_MOST_HEADER = 512


class ValueSeal:
    """Seals and opens the large values of a store.

    Args:
        store_id: returns which store it is, or None where it has no identity yet; asked only where there is a key.
        ring: the keys, if there are any.
        compression: `gzip`, `zstd`, or an empty string.
    """

    def __init__(self, store_id: Callable[[], str | None], ring: KeyRing | None = None, compression: str = "") -> None:
        self._store_id = store_id
        self._ring = ring
        self._compression = compression

    def sealed(self, digest: str, content: bytes) -> tuple[str, bytes]:
        """Return the name and the bytes of the file that keeps a value.

        Args:
            digest: SHA-256 of the content, in hex.
            content: the content.
        """
        key = None if self._ring is None else self._ring.newest
        found = packed(content, self._compression) if self._compression else None
        method = "" if found is None else self._compression
        data = content if found is None else found
        if key is None or key.use != ENCRYPT:
            return digest + _SUFFIXES.get(method, ""), data
        nonce = token_hex(32)
        said = {"flowckpt": "value", "key": key.id, "nonce": nonce, "packed": f"{method},aes-gcm".lstrip(",")}
        head = json.dumps(said, separators=(",", ":")).encode() + b"\n"
        return self._name(key, digest), head + self._cipher(key, nonce).encrypted(data, 0, head + digest.encode())

    @staticmethod
    def most_bytes(size: int) -> int:
        """Return the most bytes that the file of a value may have.

        Args:
            size: the length of the value.
        """
        return size + _MOST_HEADER + TAG * (size // PART + 1)

    def names(self, digest: str) -> list[str]:
        """Return the names under which a value may be found, the likeliest first.

        Args:
            digest: SHA-256 of the content, in hex.
        """
        plain = [digest, *(digest + suffix for suffix in _METHODS)]
        if self._ring is None or self._store_id() is None:
            return plain
        keyed = [self._name(key, digest) for key in self._ring.keys]
        return [*keyed, *plain] if self._ring.newest.use == ENCRYPT else [*plain, *keyed]

    def encrypted_name(self, digest: str) -> str | None:
        """Return the one name that a value should have where values are encrypted; None where they are not.

        Args:
            digest: SHA-256 of the content, in hex.
        """
        key = None if self._ring is None else self._ring.newest
        return None if key is None or key.use != ENCRYPT else self._name(key, digest)

    def opened(self, name: str, data: bytes, digest: str, size: int) -> bytes:
        """Return the content of a file that keeps a value; the caller compares it with the digest.

        Args:
            name: the file's name.
            data: its bytes.
            digest: SHA-256 of the content, in hex.
            size: how long the content is.

        Raises:
            SealBrokenError: it does not open.
        """
        if name == digest:
            return data
        if name.endswith(SEALED):
            return self._decrypted(data, digest, size)
        return unpacked(data, _METHODS[name.removeprefix(digest)], size)

    def _decrypted(self, data: bytes, digest: str, size: int) -> bytes:
        head, line_end, rest = data.partition(b"\n")
        try:
            said = json.loads(head)
            key_id, nonce, methods = str(said["key"]), str(said["nonce"]), str(said["packed"]).split(",")
        except (ValueError, LookupError, TypeError) as error:
            raise SealBrokenError("the head of a sealed value is damaged") from error
        key = None if self._ring is None else self._ring.get(key_id)
        if key is None or methods.pop() != "aes-gcm" or len(methods) > 1:
            raise SealBrokenError("the head of a sealed value is not of a key that is at hand")
        found = self._cipher(key, nonce).decrypted(rest, 0, head + line_end + digest.encode())
        return unpacked(found, methods[0], size) if methods else found

    def _name(self, key: Key, digest: str) -> str:
        name_key = derived(key.secret, str(self._store_id()).encode(), purpose=b"value names")
        return hmac.digest(name_key, digest.encode(), "sha256").hex() + SEALED

    def _cipher(self, key: Key, nonce: str) -> Cipher:
        return Cipher(derived(key.secret, str(self._store_id()).encode(), nonce.encode(), purpose=b"values"))
