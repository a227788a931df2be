r"""The lines of an exported run: JSON for people and for `jq`, one record a line.

::

    {"flowckpt":"run","schema_version":1,"workflow_id":"nightly","workflow_name":"etl","status":"failed","target":{…}}
    {"attempt":1,"keeps":0}
    {"checkpoint":{"sequence":1,"checkpoint_id":"@started",…},"results":0,"chain":"…"}
    {"blob":"SHA-256 of the content","size":70002,"content":…}
    {"result":{"path":"fetch",…}}
    {"checkpoint":{"sequence":2,"checkpoint_id":"fetch",…},"results":1,"chain":"…"}
    {"attempt":2,"keeps":1}
    …
    {"end":{"attempts":2,"checkpoints":9,"results":8,"blobs":1,"sha256":"…"}}

A result stands there in its canonical bytes and a large value in its own, so that they come out of the file as they went
in. The chain digest of a checkpoint proves the results up to it, and the last line all that stands before it. Nothing
says when or from where it was exported: the same run makes the same bytes, whatever store it lies in.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

import attrs

from flowckpt.checkpoint.data import SCHEMA_VERSION
from flowckpt.codec import Json, dumps

FORMAT = "run"
_RESULT = b'{"result":'
_BLOB = re.compile(rb'\{"blob":"([0-9a-f]{64})","size":([1-9][0-9]{0,15}),"content":')


@attrs.frozen
class Counts:
    """How much stands in an exported run.

    Attributes:
        attempts: attempts that saved something.
        checkpoints: checkpoints, of all of them.
        results: results, those that no longer count included.
        blobs: large values.
    """

    attempts: int = 0
    checkpoints: int = 0
    results: int = 0
    blobs: int = 0


def header_line(workflow_id: str, workflow_name: str, status: str, target: Mapping[str, Json]) -> bytes:
    """Return the first line.

    Args:
        workflow_id: the run.
        workflow_name: its workflow.
        status: where it stands, according to its newest checkpoint.
        target: where the workflow is found; empty where that is not known.
    """
    return _line(
        {
            "flowckpt": FORMAT,
            "schema_version": SCHEMA_VERSION,
            "workflow_id": workflow_id,
            "workflow_name": workflow_name,
            "status": status,
            "target": dict(target),
        }
    )


def attempt_line(attempt: int, keeps: int) -> bytes:
    """Return the line that begins an attempt.

    Args:
        attempt: its number.
        keeps: with how many of the results before it, it begins; what follows those no longer counts.
    """
    return _line({"attempt": attempt, "keeps": keeps})


def blob_line(digest: str, content: bytes) -> bytes:
    """Return the line of a large value.

    Args:
        digest: SHA-256 of the content, in hex.
        content: its JSON text.
    """
    return b'{"blob":"%b","size":%d,"content":%b}\n' % (digest.encode(), len(content), content)


def result_line(encoded: bytes) -> bytes:
    """Return the line of a result.

    Args:
        encoded: its canonical bytes.
    """
    return b"%b%b}\n" % (_RESULT, encoded)


def checkpoint_line(head: Mapping[str, Json], results: int, chain: str) -> bytes:
    """Return the line of a checkpoint.

    Args:
        head: its fields beside its results, without those that are as in the checkpoint before.
        results: how many results it holds.
        chain: their chain digest, in hex.
    """
    return _line({"checkpoint": dict(head), "results": results, "chain": chain})


def end_line(counts: Counts, sha256: str) -> bytes:
    """Return the last line.

    Args:
        counts: how much stands before it.
        sha256: SHA-256 over all that stands before it, in hex.
    """
    return _line({"end": {**attrs.asdict(counts), "sha256": sha256}})


def result_in(line: bytes) -> bytes | None:
    """Return the canonical bytes of a result's line; None where it is another one.

    Args:
        line: the line, without its line feed.
    """
    return line[len(_RESULT) : -1] if line.startswith(_RESULT) and line.endswith(b"}") else None


def blob_in(line: bytes) -> tuple[str, int, int] | None:
    """Return digest and size of a large value, and where its content begins in the line; None where it is another one.

    Args:
        line: the line, without its line feed.
    """
    match = _BLOB.match(line)
    return None if match is None else (match[1].decode(), int(match[2]), match.end())


def _line(document: Json) -> bytes:
    return dumps(document).encode() + b"\n"


def is_run(first_line: bytes) -> bool:
    """Tell whether a file that begins so is an exported run.

    Args:
        first_line: its first line.
    """
    if not first_line.startswith(b"{"):
        return False
    try:
        found = json.loads(first_line)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and "flowckpt" in found
