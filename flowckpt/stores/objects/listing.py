"""A run in a list: from the end of its newest attempt, where the owner said how it stands; else from a few records.

That takes three requests for a run that was given up, and up to eight for one that is running or has crashed; the runs of a
list are asked for sixteen at a time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from flowckpt.core.codec import decode
from flowckpt.core.records import CheckpointData, Reason, Status
from flowckpt.core.records.checkpoint import STATUS_OF_REASON
from flowckpt.core.records.listing import RunInfo
from flowckpt.errors import DecodingError
from flowckpt.stores.objects.attempt import ChangedMeanwhileError, Tail, claim_in, corrupt, holder_of, tail_of
from flowckpt.stores.objects.bucket import Bucket
from flowckpt.stores.objects.layout import RUNS, AttemptKeys, InflationError, RunKeys, run_keys, unpacked

Latest = Callable[[str], tuple[CheckpointData, datetime] | None]
"""Returns the newest checkpoint of a run, and when its first one was saved; None where it has none."""


def listed_runs(bucket: Bucket) -> list[str]:
    """Return the keys of all runs, cleared ones too."""
    return [f"{RUNS}/{name}" for name in bucket.names(RUNS, "")]


def run_id_in(bucket: Bucket, run: str) -> str | None:
    """Return the id of the run under a key; None where no claim says it, as of one that was cleared.

    Args:
        bucket: the bucket.
        run: the key of the run.
    """
    keys = run_keys(run, bucket.names(run, run))
    for attempt in reversed(keys.attempts):
        said = claim_in(bucket.get(keys.at(attempt).record(0), run))
        if said is not None and isinstance(said.get("workflow_id"), str):
            return str(said["workflow_id"])
    return None


def has_records(bucket: Bucket, run: str) -> bool:
    """Tell whether a run that no claim names has records all the same, so that its claim was lost.

    Args:
        bucket: the bucket.
        run: the key of the run.
    """
    keys = run_keys(run, bucket.names(run, run))
    return any(tail_of(bucket, keys.at(attempt), run).is_begun for attempt in keys.attempts)


def left_behind(bucket: Bucket, run: str) -> int:
    """Return how many large values and messages came to former lives of a run when these had ended.

    Args:
        bucket: the bucket.
        run: the key of the run.
    """
    keys = run_keys(run, bucket.names(run, run))
    return sum(len(bucket.objects(under, run)) for under in (*keys.former_signals, *keys.former_values))


def run_info(bucket: Bucket, run: str, now: datetime, latest_of: Latest) -> RunInfo | None:
    """Return a run as a list shows it; None where it has no checkpoint.

    Args:
        bucket: the bucket.
        run: the key of the run.
        now: the time, for leases.
        latest_of: returns the newest checkpoint of a run, which takes reading all of it.

    Raises:
        CheckpointCorruptedError: a record that it needs is damaged.
        ChangedMeanwhileError: an object was removed meanwhile.
    """
    keys = run_keys(run, bucket.names(run, run))
    owner = None
    for attempt in reversed(keys.attempts):
        at = keys.at(attempt)
        tail = tail_of(bucket, at, run)
        if tail.is_over or tail.is_void:
            return None
        if attempt == keys.attempts[-1]:
            holder = holder_of(bucket, at, tail, run)
            owner = holder.owner if holder is not None and holder.holds(now) else None
        if tail.is_begun:
            try:
                info = _from_end(tail) or _from_records(bucket, keys, at, tail, latest_of)
            except (DecodingError, InflationError, LookupError, TypeError, ValueError) as error:
                raise corrupt(at.root, run, f"it cannot be described: {error}") from error
            return None if info is None else info.with_owner(owner)
    return None


def _from_end(tail: Tail) -> RunInfo | None:
    said = tail.end.run if tail.end is not None else None
    if said is None:
        return None
    return RunInfo(
        said["workflow_id"],
        said["workflow_name"],
        Status(said["status"]),
        said["attempt"],
        datetime.fromisoformat(said["started_at"]),
        datetime.fromisoformat(said["updated_at"]),
        said["steps"],
        decode(said["metadata"]),
    )


def _from_records(bucket: Bucket, keys: RunKeys, at: AttemptKeys, tail: Tail, latest_of: Latest) -> RunInfo | None:
    last_number = tail.number - (tail.end is not None)
    wanted = [at.record(0), at.record(1), at.record(last_number)]
    claim, first, last = bucket.get_all(wanted, keys.run)
    said = claim_in(claim)
    if said is None or first is None or last is None:
        raise ChangedMeanwhileError(at.root)
    workflow_id = str(said["workflow_id"])
    head, tip = _last_line(first), _last_line(last)
    started_at = _started_at(first, head)
    # After a deletion only the whole run says which is its newest; and of an earlier version, when it was started.
    if "sequence" not in head or "sequence" not in tip or started_at is None:
        found = latest_of(workflow_id)
        if found is None:
            return None
        data, started_at = found
        return RunInfo(
            workflow_id,
            data.workflow_name,
            data.status,
            data.attempt,
            started_at,
            data.saved_at,
            len(data.step_results),
            data.metadata,
        )
    return RunInfo(
        workflow_id,
        tip.get("workflow_name", head["workflow_name"]),
        Status(tip.get("status", STATUS_OF_REASON[Reason(tip["reason"])])),
        at.attempt,
        started_at,
        datetime.fromisoformat(tip["saved_at"]),
        tip["results"],
        decode(tip.get("metadata", head["metadata"])),
    )


def _started_at(first: bytes, head: Mapping[str, Any]) -> datetime | None:
    """Return when the run's first checkpoint was saved, as its newest attempt says; None where it does not say so."""
    adoption = json.loads(unpacked(first).partition(b"\n")[0])
    said = adoption.get("started_at")
    if said is None and ("adopts" not in adoption or "seen" in adoption):
        said = head.get("saved_at")
    return None if said is None else datetime.fromisoformat(said)


def _last_line(body: bytes) -> Mapping[str, Any]:
    said = json.loads(unpacked(body).rstrip(b"\n").rpartition(b"\n")[2])
    if not isinstance(said, dict):
        raise TypeError("a record is no JSON object")
    return said
