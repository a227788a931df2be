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
    {"end":{"attempts":2,"checkpoints":9,"results":8,"blobs":1,"sha256":"…","key":"…","mac":"…"}}

A result stands there in its canonical bytes and a large value in its own, so that they come out of the file as they went
in. The chain digest of a checkpoint proves the results up to it, and the last line all that stands before it. If the
store has a key, the last line is signed. Nothing else says when or from where it was exported: the same run makes the
same bytes, whatever store it lies in.
"""

from __future__ import annotations

import hmac
import json
import math
import re
from collections.abc import Mapping
from typing import Any

import attrs

from flowckpt.core.codec import Json, dumps
from flowckpt.core.codec.wellformed import MalformedError
from flowckpt.core.records.checkpoint import SCHEMA_VERSION
from flowckpt.core.system.ids import why_invalid_run_id
from flowckpt.stores.log.sealing.keys import Key, derive_key

FORMAT = "run"
_RESULT_PREFIX = b'{"result":'
_SIGNATURE = re.compile(rb',"key":"([0-9a-f]{16})","mac":"[0-9a-f]{64}"\}\}\n')
_BLOB = re.compile(rb'\{"blob":"([0-9a-f]{64})","size":([1-9][0-9]{0,15}),"content":')


@attrs.define
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
        target: where the workflow is found; empty if that is not known.
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
    return b"%b%b}\n" % (_RESULT_PREFIX, encoded)


def checkpoint_line(head: Mapping[str, Json], results: int, chain: str) -> bytes:
    """Return the line of a checkpoint.

    Args:
        head: its fields beside its results, without those that are as in the checkpoint before.
        results: how many results it holds.
        chain: their chain digest, in hex.
    """
    return _line({"checkpoint": dict(head), "results": results, "chain": chain})


def end_line(counts: Counts, sha256: str, key: Key | None = None) -> bytes:
    """Return the last line.

    Args:
        counts: how much stands before it.
        sha256: SHA-256 over all that stands before it, in hex.
        key: the key to sign it with.
    """
    end = {**attrs.asdict(counts), "sha256": sha256}
    if key is None:
        return _line({"end": end})
    mac = hmac.digest(derive_key(key.secret, purpose=b"exported run"), _line({"end": end}), "sha256")
    return _line({"end": {**end, "key": key.id, "mac": mac.hex()}})


def find_signing_key(line: bytes, unsigned: bytes) -> str | None:
    """Return the id of the key that signed a last line, or "" if it is unsigned; None if it is not such a line.

    Args:
        line: the line.
        unsigned: the line that belongs there, unsigned.
    """
    if line == unsigned:
        return ""
    match = _SIGNATURE.fullmatch(line.removeprefix(unsigned[:-3]))
    return None if match is None else match[1].decode()


def parse_result(line: bytes) -> bytes | None:
    """Return the canonical bytes of a result's line; None if it is another one."""
    return line[len(_RESULT_PREFIX) : -1] if line.startswith(_RESULT_PREFIX) and line.endswith(b"}") else None


def parse_blob(line: bytes) -> tuple[str, int, int] | None:
    """Return digest and size of a large value, and where its content begins in the line; None if it is another one."""
    match = _BLOB.match(line)
    return None if match is None else (match[1].decode(), int(match[2]), match.end())


def _line(document: Json) -> bytes:
    return dumps(document).encode() + b"\n"


def is_run(first_line: bytes) -> bool:
    """Return whether a file that begins so is an exported run."""
    if not first_line.startswith(b"{"):
        return False
    try:
        document = json.loads(first_line)
    except (ValueError, RecursionError):
        return False
    return isinstance(document, dict) and "flowckpt" in document


# How far an import goes with a file that anybody may have made.


MIB = 1024 * 1024
MOST_DEPTH = 260
"""How many brackets may lie in one another: those of the deepest value that can be recorded, and of what holds it."""

RATIO_FROM = 16 * MIB
"""Up to so many bytes, a compressed file may be of any ratio."""


def _check_at_least_one(_: object, attribute: attrs.Attribute[int], value: int) -> None:
    if type(value) is not int or value < 1:
        raise ValueError(f"{attribute.name} must be a whole number of at least 1, got {value!r}")


@attrs.frozen(kw_only=True)
class ImportLimits:
    """How much an import accepts. The defaults accept any reasonable run.

    Attributes:
        max_bytes: bytes of the file after decompression.
        max_value_bytes: bytes of one line, which holds at most one large value; about the memory needed.
        max_records: lines of the file.
        max_attempts: the highest number of an attempt.
        max_ratio: the largest ratio of content to compressed file.
    """

    max_bytes: int = attrs.field(default=64 * 1024 * MIB, validator=_check_at_least_one)
    max_value_bytes: int = attrs.field(default=1024 * MIB, validator=_check_at_least_one)
    max_records: int = attrs.field(default=10_000_000, validator=_check_at_least_one)
    max_attempts: int = attrs.field(default=10_000, validator=_check_at_least_one)
    max_ratio: int = attrs.field(default=200, validator=_check_at_least_one)


# JSON from anybody: parsed to a tree that every store can hold and every reader can read again, or refused.


_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) < len(pairs):
        keys = [key for key, _ in pairs]
        raise MalformedError(f"the key {next(key for key in keys if keys.count(key) > 1)!r:.60} stands there twice")
    return document


def _parse_finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise MalformedError(f"the number {text:.40} is too large")
    return value


def _refuse_constant(text: str) -> Any:
    raise MalformedError(f"{text} is not JSON")


_decode = json.JSONDecoder(
    object_pairs_hook=_refuse_duplicates, parse_float=_parse_finite, parse_constant=_refuse_constant
).decode


def parse_strict_json(text: bytes) -> Json:
    """Parse JSON: UTF-8, no key twice, no NaN, no number beyond what a float holds, not too deep.

    Raises:
        MalformedError: it is not valid.
    """
    try:
        tree = _decode(text.decode())
        if _SURROGATE.search(text):
            json.dumps(tree, ensure_ascii=False).encode()
    except UnicodeDecodeError as error:
        raise MalformedError(f"byte {error.start} is not UTF-8") from None
    except UnicodeEncodeError:
        raise MalformedError("a text in it has half a surrogate pair") from None
    except RecursionError:
        raise MalformedError(f"it is nested more than {MOST_DEPTH} deep") from None
    except ValueError as error:
        raise MalformedError(f"it is not JSON: {error}"[:200]) from None
    if text.count(b"[") + text.count(b"{") > MOST_DEPTH:
        _check_depth(tree)
    return tree


def _check_depth(tree: Json) -> None:
    level = [tree]
    for _ in range(MOST_DEPTH + 1):
        inner: list[Any] = []
        for each in level:
            if type(each) is dict:
                inner.extend(each.values())
            elif type(each) is list:
                inner.extend(each)
        level = [each for each in inner if type(each) in (dict, list)]
        if not level:
            return
    raise MalformedError(f"it is nested more than {MOST_DEPTH} deep")


# Which names a file may bring into a store.
#
# They reach a path only through the stores' own encoder, and a terminal only escaped; but people read and type them.


def check_run_id(name: object) -> str:
    """Return the id of a run that stands in a file, if it is one.

    Raises:
        MalformedError: it can be none.
    """
    if why := why_invalid_run_id(name):
        raise MalformedError(f"the run id {why} (--id NEW gives it another one)")
    return str(name)
