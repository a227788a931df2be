"""What is hidden from people: reports, errors and logs never show a secret, records of claims keep what they need.

A name decides (`Authorization`, `api_key`, `db_password` …), because nothing else is known about a value. Programs that
know better name their secret columns, or leave credentials with the verifier, which never records them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

HIDDEN = "(hidden)"

_SENSITIVE = re.compile(
    r"authoriz|authoris|\bauth\b|auth[-_]|[-_]auth|token|secret|passw|pwd|passphrase|api[-_ ]?key|access[-_ ]?key|"
    r"private[-_ ]?key|credential|cookie|session|bearer|jwt|\bpin\b|\bdsn\b",
    re.IGNORECASE,
)
# Not urllib.parse, which costs as much to import as all of the claims; what it cannot parse is not shown at all.
_PARTS = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*)://([^/?#]*@)?([^/?#]*)([^?#]*)(\?)?.*", re.DOTALL)
_URL = re.compile(r"[a-z][a-z0-9+.-]*://\S*", re.IGNORECASE)


def is_sensitive(name: object) -> bool:
    """Tell whether a name is one of a secret.

    Args:
        name: a key, a column, a header.
    """
    return isinstance(name, str) and _SENSITIVE.search(name) is not None


def redacted(value: Any, hidden: frozenset[str] = frozenset()) -> Any:
    """Return a copy of a value for people: what stands under a sensitive name is hidden, URLs lose user and query.

    Args:
        value: mappings, sequences and leaves.
        hidden: further names to hide.
    """
    if isinstance(value, Mapping):
        return {
            key: HIDDEN if is_sensitive(key) or key in hidden else redacted(item, hidden) for key, item in value.items()
        }
    if isinstance(value, list):
        return [redacted(item, hidden) for item in value]
    if isinstance(value, tuple):
        return tuple(redacted(item, hidden) for item in value)
    return redacted_text(value) if isinstance(value, str) else value


def redacted_text(text: str) -> str:
    """Return text whose URLs have lost what may be secret in them.

    Args:
        text: any text.
    """
    return _URL.sub(lambda match: shown_url(match[0]), text) if "://" in text else text


def shown_url(url: str) -> str:
    """Return a URL for people: without user, password, query and fragment.

    Args:
        url: the URL.
    """
    match = _PARTS.fullmatch(url)
    return f"{match[1]}://{match[3]}{match[4]}{'?…' if match[5] else ''}" if match else "(a malformed URL)"


def has_credentials(url: str) -> bool:
    """Tell whether a URL holds a user or a password.

    Args:
        url: the URL.
    """
    match = _PARTS.fullmatch(url)
    return match is not None and match[2] is not None


def secrets_in(value: Any, hidden: frozenset[str] = frozenset(), *, _is_secret: bool = False) -> Iterator[str]:
    """Yield the texts that stand under sensitive names, so that they can be scrubbed from what others wrote.

    Args:
        value: mappings, sequences and leaves.
        hidden: further names that hold secrets.
    """
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from secrets_in(item, hidden, _is_secret=_is_secret or is_sensitive(key) or key in hidden)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            yield from secrets_in(item, hidden, _is_secret=_is_secret)
    elif _is_secret and value is not None and not isinstance(value, bool):
        text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
        if len(text) >= 4:  # shorter ones would blot out the whole sentence
            yield text


def scrubbed(text: str, secrets: frozenset[str]) -> str:
    """Return text without these secrets, as written and as `repr` writes them.

    Args:
        text: what somebody else wrote: an exception's message, a driver's.
        secrets: what must not appear in it.
    """
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, HIDDEN).replace(repr(secret)[1:-1], HIDDEN)
    return text
