r"""The lines of one segment, sealed: packed where that pays, then encrypted, or authenticated.

A line's body is a JSON object without its closing brace, and is one again when it is sealed::

    {"step_results":[…],…                               as it is
    {"packed":"zstd","size":70000,"data":"BASE64"       packed
    {"packed":"aes-gcm","data":"BASE64"                 encrypted
    {"packed":"zstd,aes-gcm","size":70000,"data":"…"    packed, then encrypted
    …,"mac":"BASE64"                                    behind any of them that is not encrypted: authenticated

What a line means is bound to it: the key is derived from the store, the run, the number of the segment and a random
value in its header; and the line's number and the digest of the line before are authenticated with it. So a line opens
at one place in the world.

The number of the line is the nonce of its encryption. It never comes twice under a key: a segment has one writer, which
writes each number once; after any failure the writer is poisoned, and the run continues in a new segment, with a new
random value, and so with another key.
"""

from __future__ import annotations

import hmac
import json
from binascii import Error as Base64Error
from binascii import a2b_base64, b2a_base64
from typing import Any

import attrs

from flowckpt.stores.log.line import PACKED
from flowckpt.stores.log.sealing.cipher import Cipher
from flowckpt.stores.log.sealing.compression import packed, unpacked
from flowckpt.stores.log.sealing.keys import ENCRYPT, Key, derived
from flowckpt.stores.log.sealing.protection import SealBrokenError

SMALLEST = 4096
"""Bytes from which on a line may be packed; smaller ones stay readable."""

_CIPHER = "aes-gcm"
_DATA = b',"data":"'
_MAC = b',"mac":"'
_MAC_LENGTH = 44
_BASE64_PAYS = 0.66  # so that the base64 of it takes less than nine tenths of the line


@attrs.frozen
class Origin:
    """The purpose of a derived key: the place of its lines.

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
            key: where it comes from.
            purpose: what it is for.
        """
        parts = (self.store_id, self.workflow_id, str(self.number), self.nonce)
        return derived(key.secret, *(part.encode("utf-8", "surrogatepass") for part in parts), purpose=purpose)


class LineSeal:
    """Seals and opens the lines of one segment.

    Args:
        compression: `gzip`, `zstd`, or an empty string: how lines are packed that are large enough.
        key: authenticates or encrypts, as its use says; None for neither.
        origin: the place of the segment, where there is a key.
        is_verified: whether what is opened is to be verified; not so without the key, where that is allowed.
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
    def said(self) -> dict[str, Any]:
        """The fields of a header that describe it; none without a key."""
        if self.key is None or self.origin is None:
            return {}
        store_id, nonce = self.origin.store_id, self.origin.nonce
        return {"seal": {"key": self.key.id, "use": self.key.use, "store": store_id, "nonce": nonce}}

    @property
    def nonce(self) -> str:
        """The random part of its place; empty without a key."""
        return "" if self.origin is None else self.origin.nonce

    @property
    def is_encrypting(self) -> bool:
        """Whether the lines cannot be read without the key."""
        return self._cipher is not None

    def __str__(self) -> str:
        if self.key is None:
            return "not verified"
        return f"{'encrypted' if self._cipher is not None else 'authenticated'} with key {self.key.id}"

    def signed(self, body: bytes, number: int, previous: bytes) -> bytes:
        """Return a body that stays readable, authenticated where there is a key: a header, a note.

        Args:
            body: a JSON object without its closing brace.
            number: its place in the segment; 0 for the header.
            previous: the digest of the line before.
        """
        return body if self._mac_key is None else b'%b%b%b"' % (body, _MAC, self._mac(body, number, previous))

    def sealed(self, body: bytes, number: int, previous: bytes) -> bytes:
        """Return a body as it is written.

        Args:
            body: a JSON object without its closing brace.
            number: its place in the segment, from 1; never twice.
            previous: the digest of the line before.
        """
        methods, head, data = [], "", body
        if self.compression and len(body) >= SMALLEST:
            most = 0.9 if self._cipher else _BASE64_PAYS
            if (found := packed(body, self.compression, most=most)) is not None:
                methods, head, data = [self.compression], f',"size":{len(body)}', found
        if self._cipher is not None:
            mark = f'{{"packed":"{",".join([*methods, _CIPHER])}"{head}'.encode()
            data = self._cipher.encrypted(data, number, _place(number, previous) + mark)
            return b'%b%b%b"' % (mark, _DATA, b2a_base64(data, newline=False))
        if methods:
            mark = f'{{"packed":"{methods[0]}"{head}'.encode()
            body = b'%b%b%b"' % (mark, _DATA, b2a_base64(data, newline=False))
        return self.signed(body, number, previous)

    def opened(self, body: bytes, number: int, previous: bytes) -> bytes:
        """Return a body as it was given to be sealed.

        Args:
            body: what was written.
            number: the place where it stands.
            previous: the digest of the line before.

        Raises:
            SealBrokenError: it does not open there.
        """
        if self._cipher is None:
            body = self.verified(body, number, previous)
            return inflated(body) if body.startswith(PACKED) else body
        mark, data = _parts(body)
        methods, size = _said(mark)
        if methods[-1:] != [_CIPHER]:
            raise SealBrokenError("it is not encrypted, as every line of its segment is")
        found = self._cipher.decrypted(data, number, _place(number, previous) + mark)
        return _unpacked(found, methods[:-1], size)

    def verified(self, body: bytes, number: int, previous: bytes) -> bytes:
        """Return a body without its authentication.

        Args:
            body: what `signed` returned.
            number: the place where it stands.
            previous: the digest of the line before.

        Raises:
            SealBrokenError: it does not hold.
        """
        cut = len(body) - len(_MAC) - _MAC_LENGTH - 1
        if cut < 1 or body[cut : cut + len(_MAC)] != _MAC or body[-1:] != b'"':
            raise SealBrokenError("it is not authenticated, as every line of its segment is")
        if self.is_verified and not hmac.compare_digest(
            self._mac(body[:cut], number, previous), body[cut + len(_MAC) : -1]
        ):
            raise SealBrokenError(
                "its authentication does not hold: it was changed, put elsewhere, or made by somebody without the key"
            )
        return body[:cut]

    def hidden(self, hint: bytes, number: int) -> bytes:
        """Return a hint that lies open beside the segment: itself, or encrypted where the lines are.

        Args:
            hint: the text.
            number: never the same twice in a life of the segment's writer.
        """
        if self._hints is None:
            return hint
        return b"%d:%b" % (number, b2a_base64(self._hints.encrypted(hint, number, b""), newline=False))

    def shown(self, hidden: bytes) -> bytes:
        """Return a hint that was hidden.

        Args:
            hidden: what `hidden` returned.

        Raises:
            SealBrokenError: it does not open.
        """
        if self._hints is None:
            return hidden
        number, _, text = hidden.partition(b":")
        try:
            return self._hints.decrypted(a2b_base64(text, strict_mode=True), int(number), b"")
        except (ValueError, OverflowError) as error:
            raise SealBrokenError("a hint is damaged") from error

    def _mac(self, body: bytes, number: int, previous: bytes) -> bytes:
        assert self._mac_key is not None
        made = hmac.digest(self._mac_key, _place(number, previous) + body, "sha256")
        return b2a_base64(made, newline=False)


def inflated(body: bytes) -> bytes:
    """Return a body that was packed and nothing else.

    Args:
        body: one that begins with `PACKED`.

    Raises:
        SealBrokenError: it does not unpack, or is encrypted.
    """
    mark, data = _parts(body)
    methods, size = _said(mark)
    if _CIPHER in methods:
        raise SealBrokenError("it is encrypted, and its segment's header does not say so")
    return _unpacked(data, methods, size)


def _unpacked(data: bytes, methods: list[str], size: int) -> bytes:
    if len(methods) > 1:
        raise SealBrokenError(f"it is packed by {', '.join(methods)!r:.80}, which this version does not know")
    return unpacked(data, methods[0], size) if methods else data


def _place(number: int, previous: bytes) -> bytes:
    return number.to_bytes(8, "big") + previous


def _parts(body: bytes) -> tuple[bytes, bytes]:
    mark, found, text = body.partition(_DATA)
    if not found or text[-1:] != b'"':
        raise SealBrokenError("it is neither a record nor a sealed one")
    try:
        return mark, a2b_base64(text[:-1], strict_mode=True)
    except (Base64Error, ValueError) as error:
        raise SealBrokenError(f"invalid base64: {error}") from error


def _said(mark: bytes) -> tuple[list[str], int]:
    try:
        said = json.loads(mark + b"}")
        methods, size = str(said["packed"]).split(","), said.get("size", 0)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise SealBrokenError("it is neither a record nor a sealed one") from error
    if type(size) is not int:
        raise SealBrokenError("it does not say how long it is")
    return methods, size
