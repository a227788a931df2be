"""The JSON documents about what a store holds: their keys are a promise."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from flowckpt import codec
from flowckpt.checkpoint import StepResult
from flowckpt.checkpoint.reference import CheckpointRef, Owner, RunInfo
from flowckpt.checkpoint.signal import Signal
from flowckpt.cli.claims import evidence_document
from flowckpt.cli.run_documents import wait_document
from flowckpt.cli.stored_runs import StoredRun
from flowckpt.codec import Json
from flowckpt.codec.checkpoints import result_document
from flowckpt.codec.results import encode_error, encode_time, plain_tree
from flowckpt.manager.task import WORKFLOW_NAME as MANAGED
from flowckpt.manager.task import is_task
from flowckpt.plan.parking import Deaths
from flowckpt.stores.integrity import Finding

_STEP_KEYS = ("path", "step_type", "success", "output", "error", "duration_ms", "started_at", "attempt")


def listed_document(info: RunInfo, parked: Deaths | None = None) -> Json:
    """Return a run in a list: one item of `list --json`.

    Args:
        info: the run.
        parked: how often it died at the same step, where it is parked.
    """
    return {
        "workflow_id": info.workflow_id,
        "workflow_name": info.workflow_name,
        "status": info.status.value,
        "attempt": info.attempt,
        "steps": info.steps,
        "started_at": encode_time(info.started_at),
        "updated_at": encode_time(info.updated_at),
        "due_at": None if info.due_at is None else encode_time(info.due_at),
        "tags": dict(info.tags),
        "owner": _owner_document(info.owner),
        "parked": _parked_document(parked),
        "is_task": info.workflow_name == MANAGED,
    }


def run_document(workflow_id: str, run: StoredRun, checkpoints: Sequence[CheckpointRef]) -> dict[str, Json]:
    """Return one run with its steps and checkpoints: what `show --json` prints.

    Args:
        workflow_id: the run.
        run: what the store has of it.
        checkpoints: those of its checkpoints that are wanted, the newest first.
    """
    latest = run.latest
    return {
        "workflow_id": workflow_id,
        "workflow_name": latest.workflow_name,
        "status": run.status.value,
        "attempt": latest.attempt,
        "started_at": encode_time(run.started_at),
        "updated_at": encode_time(latest.saved_at),
        "inputs": plain_tree(latest.held_inputs, "inputs"),
        "inputs_hash": latest.inputs_hash,
        "output": plain_tree(latest.held_output, "output"),
        "error": None if latest.error is None else encode_error(latest.error),
        "tags": codec.encode(dict(latest.metadata.get("tags", {}))),
        "target": codec.encode(dict(latest.metadata.get("target", {}))),
        "rolled_back_to": codec.encode(latest.metadata.get("rolled_back_to")),
        "forked_from": codec.encode(latest.metadata.get("forked_from")),
        "owner": _owner_document(run.owner),
        "in_flight": list(latest.in_flight),
        "waits": [wait_document(wait) for wait in run.waits],
        "signals": [_signal_document(signal) for signal in run.signals],
        "pinned": sorted(run.pinned),
        "parked": _parked_document(run.parked),
        "steps": [step_document(result) for result in latest.step_results],
        "checkpoints": [checkpoint_document(reference) for reference in reversed(checkpoints)],
        "left_behind": run.left_behind,
        "is_task": is_task(latest),
    }


def finding_document(finding: Finding) -> Json:
    """Return something that a check found: one item of `check --json`.

    Args:
        finding: what was found.
    """
    return attrs.asdict(finding)


def step_document(result: StepResult) -> dict[str, Json]:
    """Return a step's result: one of the `steps` of `show --json`.

    Args:
        result: the result.
    """
    document = result_document(result)
    kept = {key: document[key] for key in _STEP_KEYS}
    return {**kept, "evidence": evidence_document(result), "marks": list(result.marks)}


def checkpoint_document(reference: CheckpointRef) -> dict[str, Json]:
    """Return a checkpoint: one of the `checkpoints` of `show --json`.

    Args:
        reference: the checkpoint.
    """
    return {
        "checkpoint_id": reference.checkpoint_id,
        "sequence": reference.sequence,
        "attempt": reference.attempt,
        "reason": reference.reason.value,
        "saved_at": encode_time(reference.saved_at),
        "verified": reference.verified,
    }


def _signal_document(signal: Signal) -> Json:
    return {
        "signal_id": signal.signal_id,
        "kind": str(signal.kind),
        "name": signal.name,
        "path": signal.path or None,
        "by": signal.by,
        "sent_at": encode_time(signal.sent_at),
        "data": signal.data,
    }


def _parked_document(deaths: Deaths | None) -> Json:
    if deaths is None:
        return None
    return {"count": deaths.count, "path": deaths.path, "paths": list(deaths.paths), "since": deaths.since}


def _owner_document(owner: Owner | None) -> Json:
    if owner is None:
        return None
    return {"host": owner.host, "pid": owner.pid, "acquired_at": encode_time(owner.acquired_at)}
