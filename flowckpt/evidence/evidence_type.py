"""The kinds of claims that come with flowckpt."""

from __future__ import annotations

from enum import StrEnum


class EvidenceType(StrEnum):
    """What a claim is about. Kinds of plugins are plain strings beside these."""

    ARTIFACT_EXISTS = "artifact_exists"
    FILE_SHA256 = "file_sha256"
    DIRECTORY_DIGEST = "directory_digest"
    COMMAND_EXIT = "command_exit"
    DB_ROW = "db_row"
    NETWORK_REACHABLE = "network_reachable"
    API_RESPONSE = "api_response"
    PROCESS_EXISTS = "process_exists"
    CONTAINER_RUNNING = "container_running"
    PREDICATE = "predicate"


_KNOWN: dict[str, EvidenceType] = {str(kind): kind for kind in EvidenceType}


def known_or_text(kind: str) -> EvidenceType | str:
    """Return the member of a known kind; the text as it is where this version does not know it.

    Args:
        kind: a kind.
    """
    return _KNOWN.get(kind, kind)
