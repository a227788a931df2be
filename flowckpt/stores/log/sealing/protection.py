"""Protection: how a store seals what it writes and opens what it reads."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import attrs

from flowckpt.errors import (
    ForeignRecordError,
    KeyMissingError,
    SettingError,
    UnauthenticatedRecordError,
    UnsupportedSchemaError,
    WrongKeyError,
)
from flowckpt.stores.log import sealing

if TYPE_CHECKING:
    from flowckpt.stores.log.sealing.keys import KeyRing
    from flowckpt.stores.log.sealing.lines import LineSeal, ValueSeal


class SealBrokenError(Exception):
    """A record does not open: it was changed, moved, or made without the key.

    Args:
        detail: what does not match.
    """

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail


# The protection settings of a store, and the seals that follow from them.


def _choose_method(compression: str) -> str:
    return "" if compression in ("none", "") else sealing.cipher.choose_method(compression)


@attrs.frozen(eq=False, repr=False)
class Protection:
    """The protection settings of a store.

    Attributes:
        ring: the keys, or None.
        compression: `gzip`, `zstd`, or an empty string.
        is_trusting: whether runs are accepted although the key does not prove them complete and authentic: with records
            written without a key, or with an end that may be missing. Sealed and broken records are still refused.
    """

    ring: KeyRing | None = None
    compression: str = attrs.field(default="none", converter=_choose_method)
    is_trusting: bool = False

    def __attrs_post_init__(self) -> None:
        if self.ring is not None and self.ring.newest.use == sealing.keys.ENCRYPT:
            sealing.cipher.check_installed()


class Seals:
    """The seals of one store, for writing and for reading.

    Args:
        protection: the settings.
        store_id: returns the identity of the store, or None if it has none.
    """

    def __init__(self, protection: Protection, store_id: Callable[[], str | None]) -> None:
        self.protection = protection
        self._store_id = store_id

    def make_seal(self, workflow_id: str, number: int, nonce: str) -> tuple[dict[str, Any], LineSeal | None]:
        """Return the header fields and the seal of a new segment; None if it is not sealed.

        Args:
            workflow_id: the run.
            number: the segment.
            nonce: a new random value, in hex.
        """
        ring = self.protection.ring
        if ring is None:
            method = self.protection.compression
            return {}, sealing.lines.LineSeal(compression=method) if method else None
        key, store_id = ring.newest, self._require_store_id()
        origin = sealing.lines.Origin(store_id, workflow_id, number, nonce)
        seal = sealing.lines.LineSeal(compression=self.protection.compression, key=key, origin=origin)
        return seal.header_fields, seal

    def choose_pack_seals(self, found: Iterable[LineSeal | None]) -> Seals:
        """Return the seals for a copy: encrypted records stay encrypted, under the newest encrypting key.

        Args:
            found: the seals of everything that is copied.
        """
        ring = self.protection.ring
        encrypting = [seal.key for seal in found if seal is not None and seal.is_encrypting and seal.key is not None]
        if ring is None or not encrypting or ring.newest.use == sealing.keys.ENCRYPT:
            return self
        first = next((key for key in ring.keys if key.use == sealing.keys.ENCRYPT), encrypting[0])
        reordered = sealing.keys.KeyRing([first, *(key for key in ring.keys if key.id != first.id)])
        return Seals(attrs.evolve(self.protection, ring=reordered), self._store_id)

    def without_trust(self) -> Seals:
        """Return the same seals, but each record must be authenticated."""
        return Seals(attrs.evolve(self.protection, is_trusting=False), self._store_id)

    def is_current(self, seal: LineSeal | None) -> bool:
        """Return whether a seal uses the current key for writing, for the same use.

        Args:
            seal: the seal; None for a plain segment.
        """
        if self.protection.ring is None:
            return seal is None
        newest = self.protection.ring.newest
        return seal is not None and seal.key is not None and (seal.key.id, seal.key.use) == (newest.id, newest.use)

    def find_seal(self, workflow_id: str, number: int, header: Mapping[str, Any], place: str) -> LineSeal | None:
        """Return the seal of an existing segment; None if its header names none.

        Args:
            workflow_id: the run.
            number: the segment.
            header: its header.
            place: the segment's name, for errors.

        Raises:
            SealBrokenError: the header's description of its seal is invalid.
            ForeignRecordError: the segment belongs to another store.
            KeyMissingError: it is encrypted, and there is no key.
            WrongKeyError: it was written with a key that is not available.
            UnsupportedSchemaError: this version does not know its kind of seal.
        """
        seal_fields = header.get("seal")
        if seal_fields is None:
            return None
        if not isinstance(seal_fields, dict) or any(
            type(seal_fields.get(name)) is not str for name in ("key", "use", "store", "nonce")
        ):
            raise SealBrokenError("its header does not say how it is sealed")
        key_id, use, store, nonce = (seal_fields[name] for name in ("key", "use", "store", "nonce"))
        if use not in sealing.keys.USES:
            raise UnsupportedSchemaError(found=use, supported=1, what=f"seal of {place}")
        ring = self.protection.ring
        if ring is None:
            if use == sealing.keys.AUTHENTICATE:
                return sealing.lines.LineSeal(is_verified=False)
            raise KeyMissingError(workflow_id, key_id=key_id)
        if store != self._require_store_id():
            raise ForeignRecordError(
                f"{place} of run {workflow_id!r} belongs to the store {store}, but this is the store {self._require_store_id()}",
                workflow_id=workflow_id,
                found=f"store {store}",
                remedy="A file was copied between stores; put back the one that belongs here.",
            )
        key = ring.get(key_id)
        if key is None:
            raise WrongKeyError(workflow_id, key_id=key_id, known=[each.id for each in ring.keys])
        if key.use != use:  # an encrypting key is never used to authenticate
            key = attrs.evolve(key, use=use)
        return sealing.lines.LineSeal(key=key, origin=sealing.lines.Origin(store, workflow_id, number, nonce))

    def check_plain(self, workflow_id: str, place: str) -> None:
        """Refuse a plain segment if there is a key.

        Args:
            workflow_id: the run.
            place: the segment's name.

        Raises:
            UnauthenticatedRecordError: there is a key, and plain records are not trusted.
        """
        if self.protection.ring is not None and not self.protection.is_trusting:
            raise UnauthenticatedRecordError(workflow_id, location=place)

    @property
    def has_key(self) -> bool:
        """Whether there is a key, so that records must be authentic."""
        return self.protection.ring is not None

    @property
    def value_seal(self) -> ValueSeal:
        """The seal of the large values."""
        return sealing.lines.ValueSeal(self._store_id, self.protection.ring, self.protection.compression)

    def _require_store_id(self) -> str:
        found = self._store_id()
        if found is None:
            raise SealBrokenError("the store has lost its identity: store.json is missing")
        return found


PLAIN = Seals(Protection(), lambda: None)
"""Seals that neither seal nor authenticate."""


# From the arguments of a store to its protection.


def make_protection(
    key_file: str | os.PathLike[str] | None, keys: KeyRing | None, compression: str, trust: bool
) -> Protection:
    """Return the protection for the arguments of a store.

    Args:
        key_file: a file with keys, or None.
        keys: the keys themselves, or None.
        compression: `none`, `gzip`, `zstd` or `auto`.
        trust: whether runs are accepted that are not authenticated.

    Raises:
        KeyFileError: the key file is missing, invalid, or readable by other users.
        SettingError: two sources of keys, no such compression, or a package that is missing.
    """
    if key_file is not None and keys is not None:
        raise SettingError("both key_file and keys were given", setting="keys", remedy="Give only one.")
    ring = keys if key_file is None else sealing.keys.read_key_file(key_file)
    return Protection(ring, compression, is_trusting=trust)
