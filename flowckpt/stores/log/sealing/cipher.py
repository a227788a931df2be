"""AES-256-GCM over bytes of any length, by the package `cryptography`.

A nonce is (number, part, whether it is the last part). The caller never gives one number twice to one key; parts are
counted here. So no nonce comes twice under a key, nothing can be left out of the middle, and the end is known as one.
"""

from __future__ import annotations

from flowckpt.core.system import external
from flowckpt.errors import SettingError
from flowckpt.stores.log.sealing.protection import SealBrokenError

PART = 1 << 24
TAG = 16


def check_installed() -> None:
    """Refuse where the package is missing.

    Raises:
        SettingError: it is.
    """
    try:
        _ = external.aead.AESGCM
    except ImportError as error:
        raise SettingError(
            "encryption needs the package cryptography, which is not installed",
            setting="key_file",
            remedy="pip install 'flowckpt[crypto]'",
        ) from error


class Cipher:
    """Encrypts and decrypts under one derived key.

    Args:
        key: 32 bytes, derived for one origin and one purpose.
    """

    def __init__(self, key: bytes) -> None:
        check_installed()
        self._aead = external.aead.AESGCM(key)

    def encrypted(self, data: bytes, number: int, bound: bytes) -> bytes:
        """Return data encrypted and authenticated.

        Args:
            data: the bytes.
            number: never the same twice under this key.
            bound: what the reader must give again for it to open.
        """
        parts = max(1, -(-len(data) // PART))
        if parts == 1:
            return self._aead.encrypt(_nonce(number, 0, is_last=True), data, bound)
        return b"".join(
            self._aead.encrypt(
                _nonce(number, part, is_last=part == parts - 1), data[part * PART : (part + 1) * PART], bound
            )
            for part in range(parts)
        )

    def decrypted(self, data: bytes, number: int, bound: bytes) -> bytes:
        """Return what was encrypted.

        Args:
            data: what `encrypted` returned.
            number: as then.
            bound: as then.

        Raises:
            SealBrokenError: anything about it is another.
        """
        whole = PART + TAG
        parts = max(1, -(-len(data) // whole))
        try:
            return b"".join(
                self._aead.decrypt(
                    _nonce(number, part, is_last=part == parts - 1), data[part * whole : (part + 1) * whole], bound
                )
                for part in range(parts)
            )
        except (external.cryptography_exceptions.InvalidTag, ValueError) as error:
            raise SealBrokenError(
                "it does not decrypt: it was changed, put elsewhere, or made by somebody without the key"
            ) from error


def _nonce(number: int, part: int, *, is_last: bool) -> bytes:
    return number.to_bytes(7, "big") + part.to_bytes(4, "big") + bytes([is_last])
