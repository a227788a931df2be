"""Secret values in claims: recorded as a salted digest, so that they can be compared and never be read."""

from __future__ import annotations

import hmac
import os
from hashlib import pbkdf2_hmac
from typing import Any

_KEY = "salted_sha256"
_ROUNDS = 10_000  # a few milliseconds: dear for who guesses, cheap for who compares one row


def digest_of_secret(value: Any) -> dict[str, str]:
    """Return what is recorded of a secret value.

    Args:
        value: None, a bool, a number, a text or bytes.
    """
    salt = os.urandom(16)
    return {_KEY: f"{salt.hex()}:{_digest(value, salt)}"}


def is_digest(wanted: object) -> bool:
    """Tell whether a recorded value is that of a secret.

    Args:
        wanted: the value in a claim.
    """
    return isinstance(wanted, dict) and len(wanted) == 1 and isinstance(wanted.get(_KEY), str)


def matches(wanted: dict[str, str], found: Any) -> bool:
    """Tell whether a value is the secret one.

    Args:
        wanted: what was recorded.
        found: the value.
    """
    salt, _, digest = wanted[_KEY].partition(":")
    try:
        return hmac.compare_digest(_digest(found, bytes.fromhex(salt)).encode(), digest.encode())
    except (ValueError, TypeError):
        return False


def _digest(value: Any, salt: bytes) -> str:
    if isinstance(value, bool) or (isinstance(value, float) and value.is_integer()):
        value = int(value)  # 1, 1.0 and True are one value to a database
    kind = "number" if isinstance(value, int | float) else type(value).__name__
    data = value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")
    return pbkdf2_hmac("sha256", kind.encode() + b":" + data, salt, _ROUNDS).hex()
