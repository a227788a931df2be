"""Conversion of claims and packs to plain JSON and back, keeping every value and its type (the codec's tags).

Documents of newer programs are accepted: unknown kinds are claims like others, unknown fields are kept, and a claim
whose facts cannot be read keeps its document, which is written again unchanged.
"""

from __future__ import annotations

import copy
import hmac
import json
import os
from collections.abc import Callable, Mapping
from datetime import datetime
from hashlib import pbkdf2_hmac
from typing import Any, TypeVar

from flowckpt.core.codec.tags import Json, decode, encode
from flowckpt.errors import DecodingError, EvidenceError
from flowckpt.evidence.claims import Capture, Evidence, EvidencePack, State

T = TypeVar("T")

_EVIDENCE_FIELDS = {
    "evidence_type", "description", "expected", "metadata", "state", "transient", "quorum", "captured", "role",
    "attempts", "backoff",
}  # fmt: skip
_PACK_FIELDS = {"evidence", "require_all", "allow_partial", "min_verified"}
_ORIGINAL = "$document"
"""The key in `extra` under which an unreadable claim keeps its document; no field can have this name."""


def encode_evidence(evidence: Evidence) -> dict[str, Json]:
    """Return the document of a claim; fields at their defaults are left out.

    Raises:
        EncodingError: a fact is of a type that cannot be recorded.
    """
    if evidence.state is State.UNREADABLE and _ORIGINAL in evidence.extra:
        original: dict[str, Json] = copy.deepcopy(evidence.extra[_ORIGINAL])
        return original
    document: dict[str, Json] = {
        "evidence_type": str(evidence.evidence_type),
        "description": encode(evidence.description, "evidence.description"),
        "expected": encode(evidence.expected, "evidence.expected"),
    }
    if evidence.metadata:
        document["metadata"] = encode(evidence.metadata, "evidence.metadata")
    if evidence.state is not State.STATED:
        document["state"] = str(evidence.state)
    if evidence.is_transient:
        document["transient"] = True
    if evidence.workers != 1:
        document["quorum"] = evidence.workers
    if evidence.attempts != 1:
        document |= {"attempts": evidence.attempts, "backoff": evidence.backoff}
    if evidence.role:
        document["role"] = evidence.role
    if (captured := evidence.captured) is not None:
        document["captured"] = {
            "at": captured.at.isoformat(),
            "signature": None if captured.signature is None else list(captured.signature),
            "facts": encode(dict(captured.facts), "evidence.captured"),
        }
    return {**copy.deepcopy(dict(evidence.extra)), **document}


def decode_evidence(document: Json) -> Evidence:
    """Return the claim of a document.

    Raises:
        DecodingError: it is not the document of a claim.
    """
    if not isinstance(document, Mapping) or not isinstance(document.get("evidence_type"), str):
        raise DecodingError(f"a recorded claim is malformed: {document!r:.120}", place="evidence")
    try:
        return _decode_claim(document)
    except (DecodingError, EvidenceError, KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return _make_unreadable(document)


def _decode_claim(document: Mapping[str, Json]) -> Evidence:
    held = document.get("captured")
    return Evidence(
        document["evidence_type"],
        _check_type(str, decode(document.get("description", ""))),
        decode(document["expected"]),
        decode(document.get("metadata", {})),
        state=State(document.get("state", State.STATED)),
        is_transient=_check_type(bool, document.get("transient", False)),
        workers=document.get("quorum", 1),
        attempts=document.get("attempts", 1),
        backoff=document.get("backoff", 0.0),
        captured=None if held is None else _decode_capture(held),
        role=_check_type(str, document.get("role", "")),
        extra=copy.deepcopy({key: item for key, item in document.items() if key not in _EVIDENCE_FIELDS}),
    )


def _decode_capture(held: Mapping[str, Json]) -> Capture:
    signature = held.get("signature")
    at = datetime.fromisoformat(held["at"])
    if at.tzinfo is None:
        raise ValueError("a time without zone")
    return Capture(
        at,
        None if signature is None else tuple(_check_type(int, part) for part in signature),
        _check_type(dict, decode(held.get("facts", {}))),
    )


def _check_type(cls: Callable[..., T], value: Any) -> T:
    if type(value) is not cls:
        raise TypeError(f"{value!r:.60} is of another type")
    found: T = value
    return found


def _make_unreadable(document: Mapping[str, Json]) -> Evidence:
    kind, message = document["evidence_type"], document.get("description")
    kept = json.loads(json.dumps(document))  # a private copy of the JSON value
    return Evidence(
        kind if kind.strip() and kind.isprintable() else "unreadable",
        message if isinstance(message, str) else kind,
        {},
        state=State.UNREADABLE,
        is_transient=document.get("transient") is True,
        extra={_ORIGINAL: kept},
    )


def encode_pack(pack: EvidencePack) -> dict[str, Json]:
    """Return the document of a pack.

    Raises:
        EncodingError: a fact of a claim is of a type that cannot be recorded.
    """
    document: dict[str, Json] = {
        **copy.deepcopy(dict(pack.extra)),
        "evidence": [encode_evidence(claim) for claim in pack.evidence_list],
        "require_all": pack.require_all,
    }
    if pack.allow_partial:
        document["allow_partial"] = True
    if pack.min_verified:
        document["min_verified"] = pack.min_verified
    return document


def decode_pack(document: Json) -> EvidencePack:
    """Return the pack of a document.

    Raises:
        DecodingError: it is not the document of a pack; a missing policy is never guessed.
    """
    try:
        claims: list[Json] = _check_type(list, document["evidence"])
        return EvidencePack(
            [decode_evidence(claim) for claim in claims],
            document.get("require_all", True),
            document.get("allow_partial", False),
            document.get("min_verified", 0),
            extra=copy.deepcopy({key: item for key, item in document.items() if key not in _PACK_FIELDS}),
        )
    except DecodingError:
        raise
    except (EvidenceError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise DecodingError(f"a recorded evidence pack is malformed: {error!r:.120}", place="evidence") from error


# Secret values in claims are recorded as salted digests: they can be compared, but not read.


_KEY = "salted_sha256"
_ROUNDS = 10_000  # a few milliseconds: expensive for guessing, cheap for comparing one row


def digest_of_secret(value: Any) -> dict[str, str]:
    """Return the recorded form of a secret value.

    Args:
        value: None, a bool, a number, a text or bytes.
    """
    salt = os.urandom(16)
    return {_KEY: f"{salt.hex()}:{_digest(value, salt)}"}


def is_digest(wanted: object) -> bool:
    """Return whether a recorded value is the digest of a secret."""
    return isinstance(wanted, dict) and len(wanted) == 1 and isinstance(wanted.get(_KEY), str)


def matches_digest(wanted: dict[str, str], found: Any) -> bool:
    """Return whether a value equals the secret of a digest."""
    salt, _, digest = wanted[_KEY].partition(":")
    try:
        return hmac.compare_digest(_digest(found, bytes.fromhex(salt)).encode(), digest.encode())
    except (ValueError, TypeError):
        return False


def _digest(value: Any, salt: bytes) -> str:
    if isinstance(value, bool) or (isinstance(value, float) and value.is_integer()):
        value = int(value)  # 1, 1.0 and True are equal for a database
    kind = "number" if isinstance(value, int | float) else type(value).__name__
    data = value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")
    return pbkdf2_hmac("sha256", kind.encode() + b":" + data, salt, _ROUNDS).hex()
