"""Compares two checkpoints: results by the paths of their steps, values leaf by leaf.

When and how long something ran, and by which attempt, is no difference.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flowckpt.checkpoint import CheckpointData, StepResult
from flowckpt.codec.blob import Blob
from flowckpt.codec.results import plain_tree
from flowckpt.codec.tags import encode
from flowckpt.diff.leaves import ChangeKind, changes
from flowckpt.diff.model import CheckpointDiff, StepDiff
from flowckpt.errors import DecodingError
from flowckpt.evidence.model import EvidencePack
from flowckpt.evidence.redaction import redacted, redacted_text


def compare(old: CheckpointData, new: CheckpointData) -> CheckpointDiff:
    """Return what differs between two checkpoints.

    Args:
        old: the first.
        new: the second.

    Raises:
        CheckpointCorruptedError: a large value in one of them is damaged.
    """
    sides = _run_aspects(old), _run_aspects(new)
    for name in ("inputs", "output", "snapshot"):
        was, now = (getattr(each, f"held_{name}") for each in (old, new))
        sides[0][name], sides[1][name] = _trees(was, now, name)
    steps, same = [], 0
    were = {result.path: result for result in old.step_results}
    are = {result.path: result for result in new.step_results}
    for path in _in_order([*were], [*are]):
        if path not in are:
            steps.append(StepDiff(path, ChangeKind.REMOVED))
        elif path not in were:
            steps.append(StepDiff(path, ChangeKind.ADDED))
        elif found := _differing(*_step_sides(were[path], are[path])):
            steps.append(StepDiff(path, ChangeKind.CHANGED, found))
        else:
            same += 1
    return CheckpointDiff(_differing(*sides), steps, same)


def _differing(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, list[Any]]:
    found = {name: list(changes(old[name], new[name])) for name in old}
    return {name: each for name, each in found.items() if each}


def _in_order(old: Sequence[str], new: Sequence[str]) -> Iterator[str]:
    """Yield the paths of the second, and those that only the first has where they stood there."""
    places, known, at = {path: index for index, path in enumerate(old)}, set(new), 0
    for path in new:
        while path in places and at <= places[path]:
            if old[at] not in known:
                yield old[at]
            at += 1
        yield path
    yield from (path for path in old[at:] if path not in known)


def _step_sides(old: StepResult, new: StepResult) -> tuple[dict[str, Any], dict[str, Any]]:
    sides = _step_aspects(old), _step_aspects(new)
    sides[0]["output"], sides[1]["output"] = _trees(old.held_output, new.held_output, "output")
    return sides


def _trees(old: Any, new: Any, place: str) -> tuple[Any, Any]:
    """Return the trees of two values; of equal large ones nothing, so that they need not be read."""
    if isinstance(old, Blob) and isinstance(new, Blob) and old.digest == new.digest:
        return None, None
    return plain_tree(old, place), plain_tree(new, place)


def _step_aspects(result: StepResult) -> dict[str, Any]:
    error = result.error
    return {
        "outcome": "ok" if result.success else "failed",
        "output": None,
        "error": None if error is None else f"{error.type}: {error.message}",
        "code": {"action": result.step_type, "function": result.function, "fingerprint": result.fingerprint},
        "version": result.version,
        "arguments": dict(result.arguments),
        "evidence": None if result.evidence is None else _claims(result.evidence),
        "marks": list(result.marks),
    }


def _run_aspects(data: CheckpointData) -> dict[str, Any]:
    error = data.error
    packs = [each for each in data.evidence if isinstance(each, EvidencePack) or (_is_pack(each))]
    return {
        "workflow": data.workflow_name,
        "code": data.fingerprint,
        "status": str(data.status),
        "inputs": None,
        "output": None,
        "error": None if error is None else f"{error.type}: {error.message}",
        "snapshot": None,
        "evidence": [_claims(each) for each in packs],
        "in_flight": list(data.in_flight),
        "tags": encode(dict(data.metadata.get("tags", {}))),
    }


def _is_pack(recorded: Any) -> bool:
    return isinstance(recorded, Mapping) and "pack" in recorded


def _claims(recorded: Any) -> Any:
    """Return the claims of a record without their secrets, and the answer to them all."""
    outcome = None if isinstance(recorded, EvidencePack) else recorded.get("outcome")
    try:
        pack = recorded if isinstance(recorded, EvidencePack) else EvidencePack.from_document(recorded["pack"])
    except (DecodingError, KeyError):
        return {"outcome": outcome}
    claims = {
        redacted_text(claim.description): encode(redacted(dict(claim.expected), claim.hidden_names)) for claim in pack
    }
    return {"outcome": outcome, "claims": claims}
