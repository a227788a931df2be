"""Sealing of the lines of one segment, and of large values: packed if that saves enough, then encrypted or authenticated.

A line's body is a JSON object without its closing brace, both before and after sealing::

    {"step_results":[…],…                               as it is
    {"packed":"zstd","size":70000,"data":"BASE64"       packed
    {"packed":"aes-gcm","data":"BASE64"                 encrypted
    {"packed":"zstd,aes-gcm","size":70000,"data":"…"    packed, then encrypted
    …,"mac":"BASE64"                                    after any of them that is not encrypted: authenticated

A line is bound to its place: the key is derived from the store, the run, the number of the segment and a random value
in its header; the line's number and the digest of the line before are authenticated with it. So a line opens only there.

The number of the line is the nonce of its encryption. It is never used twice under a key: a segment has one writer, which
writes each number once. After any failure the writer is poisoned, and the run continues in a new segment with a new
random value, and so with another key.

Large values have their own files, named after their content. The record that names a value authenticates it by its
SHA-256, so a value is only packed or encrypted. Its name shows its form:

- `DIGEST`: as it is;
- `DIGEST.gz`, `DIGEST.zst`: packed, readable with `zcat` or `zstdcat`;
- `KEYED.sealed`: encrypted. `KEYED` is a keyed digest of the digest, so the name reveals nothing about the content without
  the key. Two runs of a store use the same name for the same value, and can share the file.

A sealed file is a line of JSON (key id, a random value, packing) and the encrypted bytes. The random value makes its
encryption key unique.
"""

from __future__ import annotations

import hmac
import json
from binascii import a2b_base64, b2a_base64
from collections.abc import Callable
from secrets import token_hex
from typing import Any

import attrs

from flowckpt.stores.log.sealing.cipher import GZIP, PART, TAG, ZSTD, Cipher, pack, unpack
from flowckpt.stores.log.sealing.keys import ENCRYPT, Key, KeyRing, derive_key
from flowckpt.stores.log.sealing.protection import SealBrokenError
from flowckpt.stores.log.segment import PACKED

SMALLEST = 4096
"""The smallest line in bytes that may be packed; smaller ones stay readable."""

_CIPHER = "aes-gcm"
_DATA = b',"data":"'
_MAC = b',"mac":"'
_MAC_LENGTH = 44
_BASE64_PAYS = 0.66  # so that the base64 of it takes less than nine tenths of the line


@attrs.frozen
class Origin:
    """The place of a segment's lines, to which a derived key is bound.

    Attributes:
        store_id: the store.
        workflow_id: the run.
        number: the segment.
        nonce: the random value in its header, in hex.
    """

    store_id: str
    workflow_id: str
    number: int
    nonce: str

    def derive(self, key: Key, purpose: bytes) -> bytes:
        """Return the key for a purpose at this place.

        Args:
            key: the master key.
            purpose: the use of the derived key.
        """
        parts = (self.store_id, self.workflow_id, str(self.number), self.nonce)
        return derive_key(key.secret, *(part.encode("utf-8", "surrogatepass") for part in parts), purpose=purpose)


class LineSeal:
    """Seals and opens the lines of one segment.

    Args:
        compression: the packing of lines that are large enough: `gzip`, `zstd`, or an empty string for none.
        key: authenticates or encrypts, according to its use; None for neither.
        origin: the place of the segment, if there is a key.
        is_verified: whether opened lines are verified; False without the key, if that is allowed.
    """

    def __init__(
        self, *, compression: str = "", key: Key | None = None, origin: Origin | None = None, is_verified: bool = True
    ) -> None:
        self.compression = compression
        self.key = key
        self.origin = origin
        self.is_verified = is_verified and key is not None
        self._mac_key: bytes | None = None
        self._cipher: Cipher | None = None
        self._hints: Cipher | None = None
        if key is not None and origin is not None:
            self._mac_key = origin.derive(key, b"mac")
            if key.use == ENCRYPT:
                self._cipher = Cipher(origin.derive(key, b"lines"))
                self._hints = Cipher(origin.derive(key, b"hints"))

    @property
    def header_fields(self) -> dict[str, Any]:
        """The header fields that describe the seal; empty without a key."""
        if self.key is None or self.origin is None:
            return {}
        store_id, nonce = self.origin.store_id, self.origin.nonce
        return {"seal": {"key": self.key.id, "use": self.key.use, "store": store_id, "nonce": nonce}}

    @property
    def nonce(self) -> str:
        """The random part of the origin; empty without a key."""
        return "" if self.origin is None else self.origin.nonce

    @property
    def is_encrypting(self) -> bool:
        """Whether the lines cannot be read without the key."""
        return self._cipher is not None

    def __str__(self) -> str:
        if self.key is None:
            return "not verified"
        return f"{'encrypted' if self._cipher is not None else 'authenticated'} with key {self.key.id}"

    def authenticate(self, body: bytes, number: int, previous: bytes) -> bytes:
        """Return a readable body (a header, a note), authenticated if there is a key.

        Args:
            body: a JSON object without its closing brace.
            number: its place in the segment; 0 for the header.
            previous: the digest of the line before.
        """
        return body if self._mac_key is None else b'%b%b%b"' % (body, _MAC, self._mac(body, number, previous))

    def seal(self, body: bytes, number: int, previous: bytes) -> bytes:
        """Return the sealed form of a body.

        Args:
            body: a JSON object without its closing brace.
            number: its place in the segment, from 1; never twice.
            previous: the digest of the line before.
        """
        methods, head, data = [], "", body
        if self.compression and len(body) >= SMALLEST:
            most = 0.9 if self._cipher else _BASE64_PAYS
            if (found := pack(body, self.compression, most=most)) is not None:
                methods, head, data = [self.compression], f',"size":{len(body)}', found
        if self._cipher is not None:
            mark = f'{{"packed":"{",".join([*methods, _CIPHER])}"{head}'.encode()
            data = self._cipher.encrypt(data, number, _encode_place(number, previous) + mark)
            return b'%b%b%b"' % (mark, _DATA, b2a_base64(data, newline=False))
        if methods:
            mark = f'{{"packed":"{methods[0]}"{head}'.encode()
            body = b'%b%b%b"' % (mark, _DATA, b2a_base64(data, newline=False))
        return self.authenticate(body, number, previous)

    def open(self, body: bytes, number: int, previous: bytes) -> bytes:
        """Return the original of a sealed body.

        Args:
            body: the sealed body.
            number: the number of its line.
            previous: the digest of the line before.

        Raises:
            SealBrokenError: it does not open at that place.
        """
        if self._cipher is None:
            body = self.verify(body, number, previous)
            return inflate(body) if body.startswith(PACKED) else body
        mark, data, methods, size = _parse_sealed(body)
        if methods[-1:] != [_CIPHER]:
            raise SealBrokenError("it is not encrypted, as every line of its segment is")
        found = self._cipher.decrypt(data, number, _encode_place(number, previous) + mark)
        return _unpack_by(found, methods[:-1], size)

    def verify(self, body: bytes, number: int, previous: bytes) -> bytes:
        """Return a body without its authentication.

        Args:
            body: what `authenticate` returned.
            number: the number of its line.
            previous: the digest of the line before.

        Raises:
            SealBrokenError: the authentication does not match.
        """
        cut = len(body) - len(_MAC) - _MAC_LENGTH - 1
        if cut < 1 or body[cut : cut + len(_MAC)] != _MAC or body[-1:] != b'"':
            raise SealBrokenError("it is not authenticated, as every line of its segment is")
        if self.is_verified and not hmac.compare_digest(
            self._mac(body[:cut], number, previous), body[cut + len(_MAC) : -1]
        ):
            raise SealBrokenError("its authentication does not match: it was changed, moved, or made without the key")
        return body[:cut]

    def encrypt_hint(self, hint: bytes, number: int) -> bytes:
        """Return a hint that is stored next to the segment, encrypted if the lines are.

        Args:
            hint: the text.
            number: never the same twice for one writer.
        """
        if self._hints is None:
            return hint
        return b"%d:%b" % (number, b2a_base64(self._hints.encrypt(hint, number, b""), newline=False))

    def decrypt_hint(self, stored: bytes) -> bytes:
        """Return the original of a hint.

        Args:
            stored: what `encrypt_hint` returned.

        Raises:
            SealBrokenError: it does not open.
        """
        if self._hints is None:
            return stored
        number, _, text = stored.partition(b":")
        try:
            return self._hints.decrypt(a2b_base64(text, strict_mode=True), int(number), b"")
        except (ValueError, OverflowError) as error:
            raise SealBrokenError("a hint is damaged") from error

    def _mac(self, body: bytes, number: int, previous: bytes) -> bytes:
        assert self._mac_key is not None
        made = hmac.digest(self._mac_key, _encode_place(number, previous) + body, "sha256")
        return b2a_base64(made, newline=False)


def inflate(body: bytes) -> bytes:
    """Unpack a body that was only packed.

    Args:
        body: a body that starts with `PACKED`.

    Raises:
        SealBrokenError: it does not unpack, or is also encrypted.
    """
    _, data, methods, size = _parse_sealed(body)
    if _CIPHER in methods:
        raise SealBrokenError("it is encrypted, but its segment's header names no encryption")
    return _unpack_by(data, methods, size)


def _unpack_by(data: bytes, methods: list[str], size: int) -> bytes:
    if len(methods) > 1:
        raise SealBrokenError(f"it is packed by {', '.join(methods)!r:.80}, which this version does not know")
    return unpack(data, methods[0], size) if methods else data


def _encode_place(number: int, previous: bytes) -> bytes:
    return number.to_bytes(8, "big") + previous


def _parse_sealed(body: bytes) -> tuple[bytes, bytes, list[str], int]:
    """Return the part of a sealed body before its data, the data, how it was sealed, and its size before packing."""
    mark, separator, text = body.partition(_DATA)
    if not separator or text[-1:] != b'"':
        raise SealBrokenError("it is neither a record nor a sealed one")
    try:
        data = a2b_base64(text[:-1], strict_mode=True)
    except ValueError as error:
        raise SealBrokenError(f"invalid base64: {error}") from error
    try:
        fields = json.loads(mark + b"}")
        methods, size = str(fields["packed"]).split(","), fields.get("size", 0)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise SealBrokenError("it is neither a record nor a sealed one") from error
    if type(size) is not int:
        raise SealBrokenError("its size is missing")
    return mark, data, methods, size


_SUFFIXES = {GZIP: ".gz", ZSTD: ".zst"}
_METHODS = {suffix: method for method, suffix in _SUFFIXES.items()}
SEALED = ".sealed"
_MOST_HEADER = 512


class ValueSeal:
    """Seals and opens the large values of a store.

    Args:
        store_id: returns the identity of the store, or None if it has none yet; called only if there is a key.
        ring: the keys, if there are any.
        compression: `gzip`, `zstd`, or an empty string.
    """

    def __init__(self, store_id: Callable[[], str | None], ring: KeyRing | None = None, compression: str = "") -> None:
        self._store_id = store_id
        self._ring = ring
        self._compression = compression

    def seal(self, digest: str, content: bytes) -> tuple[str, bytes]:
        """Return the name and the bytes of the file for a value.

        Args:
            digest: SHA-256 of the content, in hex.
            content: the content.
        """
        key = None if self._ring is None else self._ring.newest
        found = pack(content, self._compression) if self._compression else None
        method = "" if found is None else self._compression
        data = content if found is None else found
        if key is None or key.use != ENCRYPT:
            return digest + _SUFFIXES.get(method, ""), data
        nonce = token_hex(32)
        fields = {"flowckpt": "value", "key": key.id, "nonce": nonce, "packed": f"{method},{_CIPHER}".lstrip(",")}
        head = json.dumps(fields, separators=(",", ":")).encode() + b"\n"
        return self._keyed_name(key, digest), head + self._make_cipher(key, nonce).encrypt(
            data, 0, head + digest.encode()
        )

    @staticmethod
    def most_bytes(size: int) -> int:
        """Return the maximum size of the file for a value.

        Args:
            size: the length of the value.
        """
        return size + _MOST_HEADER + TAG * (size // PART + 1)

    def names(self, digest: str) -> list[str]:
        """Return the possible file names of a value, likeliest first.

        Args:
            digest: SHA-256 of the content, in hex.
        """
        plain = [digest, *(digest + suffix for suffix in _METHODS)]
        if self._ring is None or self._store_id() is None:
            return plain
        keyed = [self._keyed_name(key, digest) for key in self._ring.keys]
        return [*keyed, *plain] if self._ring.newest.use == ENCRYPT else [*plain, *keyed]

    def encrypted_name(self, digest: str) -> str | None:
        """Return the file name of an encrypted value; None if values are not encrypted.

        Args:
            digest: SHA-256 of the content, in hex.
        """
        key = None if self._ring is None else self._ring.newest
        return None if key is None or key.use != ENCRYPT else self._keyed_name(key, digest)

    def open(self, name: str, data: bytes, digest: str, size: int) -> bytes:
        """Return the value in a file; the caller compares it with the digest.

        Args:
            name: the file's name.
            data: its bytes.
            digest: SHA-256 of the content, in hex.
            size: the length of the value.

        Raises:
            SealBrokenError: it does not open.
        """
        if name == digest:
            return data
        if name.endswith(SEALED):
            return self._decrypt(data, digest, size)
        return unpack(data, _METHODS[name.removeprefix(digest)], size)

    def _decrypt(self, data: bytes, digest: str, size: int) -> bytes:
        head, line_end, rest = data.partition(b"\n")
        try:
            fields = json.loads(head)
            key_id, nonce, methods = str(fields["key"]), str(fields["nonce"]), str(fields["packed"]).split(",")
        except (ValueError, LookupError, TypeError) as error:
            raise SealBrokenError("the head of a sealed value is damaged") from error
        key = None if self._ring is None else self._ring.get(key_id)
        if key is None:
            raise SealBrokenError("the head of a sealed value names a key that is not available")
        if methods.pop() != _CIPHER or len(methods) > 1:
            raise SealBrokenError(
                f"a sealed value was packed in a way that this version does not know: {fields['packed']!r:.40}"
            )
        found = self._make_cipher(key, nonce).decrypt(rest, 0, head + line_end + digest.encode())
        return unpack(found, methods[0], size) if methods else found

    def _keyed_name(self, key: Key, digest: str) -> str:
        name_key = derive_key(key.secret, str(self._store_id()).encode(), purpose=b"value names")
        return hmac.digest(name_key, digest.encode(), "sha256").hex() + SEALED

    def _make_cipher(self, key: Key, nonce: str) -> Cipher:
        return Cipher(derive_key(key.secret, str(self._store_id()).encode(), nonce.encode(), purpose=b"values"))
