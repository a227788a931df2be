"""Facts of a claim, read with suspicion: a record may say anything."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from flowckpt.evidence.checks.base import MalformedClaimError
from flowckpt.evidence.model import Evidence

_DIGEST = re.compile(r"(?:sha256:)?([0-9a-fA-F]{64})")


def path_in(claim: Evidence) -> str:
    """Return the path of a claim.

    Args:
        claim: the claim.
    """
    path = claim.expected.get("path")
    if isinstance(path, PurePath):
        path = os.fspath(path)
    if type(path) is not str or not path:
        raise MalformedClaimError(f"'path' is {path!r:.80}, which is no path", remedy="Write a text that is not empty.")
    if "\0" in path:
        raise MalformedClaimError(f"'path' is {path!r:.80}, and a path holds no NUL")
    return path


def sha256_in(claim: Evidence, name: str = "sha256") -> str:
    """Return a SHA-256 of a claim as 64 lower-case digits; upper case and the prefix `sha256:` are right, too.

    Args:
        claim: the claim.
        name: the name of the fact.
    """
    value = claim.expected.get(name)
    match = _DIGEST.fullmatch(value) if type(value) is str else None
    if match is None:
        raise MalformedClaimError(f"{name!r} is {value!r:.80}, which is no SHA-256", remedy="Write 64 hex digits.")
    return match[1].lower()


def whole_number(facts: Mapping[str, Any], name: str, smallest: int, largest: int) -> int:
    """Return a whole number of a claim. `True` is none.

    Args:
        facts: the facts.
        name: the name of the fact.
        smallest: the smallest number allowed.
        largest: the largest.
    """
    value = facts.get(name)
    if type(value) is not int or not smallest <= value <= largest:
        raise MalformedClaimError(f"{name!r} is {value!r:.80}, and not a whole number from {smallest} to {largest}")
    return value


def text_in(facts: Mapping[str, Any], name: str) -> str:
    """Return a text of a claim.

    Args:
        facts: the facts.
        name: the name of the fact.
    """
    value = facts.get(name)
    if type(value) is not str or not value:
        raise MalformedClaimError(f"{name!r} is {value!r:.80}, and not a text")
    return value


def mapping_in(facts: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a mapping with text keys of a claim; an empty one where the fact is missing.

    Args:
        facts: the facts.
        name: the name of the fact.
    """
    value = facts.get(name)
    if value is None:
        return {}
    if not isinstance(value, Mapping) or any(type(key) is not str for key in value):
        raise MalformedClaimError(f"{name!r} is {value!r:.80}, and not a mapping with text keys")
    return dict(value)
