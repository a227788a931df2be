"""The JSON documents about the content of a store, with stable keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import click

from flowckpt.cli.progress.lines import wait_document
from flowckpt.cli.runs import run_async
from flowckpt.cli.stored_run import StoredRun
from flowckpt.core.codec import Json, encode
from flowckpt.core.codec.blob import plain_tree
from flowckpt.core.codec.checkpoints import result_document
from flowckpt.core.codec.results import encode_error, encode_time
from flowckpt.core.records import StepResult
from flowckpt.core.records.generation import number_of
from flowckpt.core.records.listing import MANAGED, STARTED_BY, CheckpointRef, Owner, RunInfo, is_task
from flowckpt.core.records.result import sum_figures
from flowckpt.core.records.wait import Signal
from flowckpt.engine.rules.crash_loop import CrashCount
from flowckpt.engine.run.live import LiveNote
from flowckpt.engine.run.resumption import SETTLED
from flowckpt.errors import DecodingError
from flowckpt.evidence.claims import Evidence, redact, redact_text
from flowckpt.evidence.report import Verdict, VerdictStatus
from flowckpt.execution.claims import READS, WRITES, read_pack, recorded_paths
from flowckpt.maintenance.attempts import Attempt, Standing, read_attempts
from flowckpt.stores.base import Ability, StoreBase
from flowckpt.stores.queries import LaterCheck

# The claims of a recorded result, without secrets.


@attrs.frozen
class RecordedClaim:
    """A claim with the verdict that was recorded when its step ended.

    Attributes:
        claim: the claim.
        status: the status of the verdict; empty if none was recorded.
        verified_at: the time of the verdict, as ISO 8601; empty if none was recorded.
        error: why the claim did not hold; empty if it did.
    """

    claim: Evidence
    status: str
    verified_at: str
    error: str

    @property
    def description(self) -> str:
        """The claim."""
        return redact_text(self.claim.description)

    def to_document(self) -> dict[str, Json]:
        """Return the claim as plain JSON without its secrets."""
        claim = self.claim
        return {
            "evidence_type": str(claim.evidence_type),
            "description": self.description,
            "expected": redact(dict(claim.expected), claim.hidden_names),
            "is_transient": claim.is_transient,
            "status": self.status,
            "verified_at": self.verified_at or None,
            "error": self.error or None,
        }


def read_recorded_claims(result: StepResult) -> list[RecordedClaim]:
    """Return the claims of a result; empty if it has none or they are unreadable."""
    if result.evidence is None:
        return []
    try:
        claims = list(read_pack(result))
    except DecodingError:
        return []
    recorded = result.evidence.get("verdicts")
    verdicts = list(recorded) if isinstance(recorded, list | tuple) else []
    verdicts += [{}] * (len(claims) - len(verdicts))
    return [
        RecordedClaim(
            claim, _find_text(verdict, "status"), _find_text(verdict, "verified_at"), _find_text(verdict, "error")
        )
        for claim, verdict in zip(claims, verdicts, strict=False)
    ]


def evidence_document(result: StepResult) -> Json:
    """Return the evidence of a result; null if it has none."""
    if result.evidence is None:
        return None
    return {
        "outcome": result.evidence.get("outcome"),
        "claims": [claim.to_document() for claim in read_recorded_claims(result)],
    }


def verdict_text(verdict: Verdict) -> str:
    """Return a verdict on one line: `holds: …`, `fails: …`, `cannot be checked: …`."""
    description = redact_text(verdict.evidence.description)
    if verdict.verified:
        return f"holds: {description}"
    if verdict.status is VerdictStatus.NOT_RECHECKED:
        return f"not checked again: {description} (transient: it only had to hold when the step ended)"
    word = "fails" if verdict.status is VerdictStatus.FAILED else "cannot be checked"
    return f"{word}: {description}: {verdict.error}"


def _find_text(verdict: Any, key: str) -> str:
    value = verdict.get(key) if isinstance(verdict, Mapping) else None
    return value if isinstance(value, str) else ""


# Runs, results and checkpoints.


_STEP_KEYS = ("path", "step_type", "success", "output", "error", "duration_ms", "started_at", "attempt")


def listed_document(
    info: RunInfo, crash_loop: CrashCount | None = None, stale: str | None = None, live: LiveNote | None = None
) -> Json:
    """Return the document of a listed run: one item of `list --json`.

    Args:
        info: the run.
        crash_loop: its crashes, if it is in a crash loop.
        stale: why it needs a person, if it does.
        live: its running steps.
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
        "waits": [wait_document(wait) for wait in info.waits],
        "tags": dict(info.tags),
        "owner": _owner_document(info.owner),
        "crash_loop": _crash_loop_document(crash_loop),
        "stale": stale,
        "live": None if live is None else live.to_document(),
        "is_task": info.workflow_name == MANAGED,
    }


def run_document(workflow_id: str, run: StoredRun, checkpoints: Sequence[CheckpointRef]) -> dict[str, Json]:
    """Return the document of a run with its steps and checkpoints, as `show --json` prints it.

    Args:
        workflow_id: the run.
        run: its stored state.
        checkpoints: the checkpoints to include, newest first.
    """
    latest = run.latest
    return {
        "workflow_id": workflow_id,
        "workflow_name": latest.workflow_name,
        "status": run.status.value,
        "attempt": latest.attempt,
        "generation": number_of(latest.metadata),
        "started_at": encode_time(run.started_at),
        "updated_at": encode_time(latest.saved_at),
        "inputs": plain_tree(latest.held_inputs, "inputs"),
        "inputs_hash": latest.inputs_hash,
        "output": plain_tree(latest.held_output, "output"),
        "error": None if latest.error is None else encode_error(latest.error),
        "tags": encode(dict(latest.metadata.get("tags", {}))),
        "target": encode(dict(latest.metadata.get("target", {}))),
        "rolled_back_to": encode(latest.metadata.get("rolled_back_to")),
        "forked_from": encode(latest.metadata.get("forked_from")),
        "started_by": encode(latest.metadata.get(STARTED_BY)),
        "settled": [dict(each) for each in latest.metadata.get(SETTLED, ())],
        "owner": _owner_document(run.owner),
        "in_flight": list(latest.in_flight),
        "live": None if run.live is None else run.live.to_document(),
        "waits": [wait_document(wait) for wait in run.waits],
        "signals": [_signal_document(signal) for signal in run.signals],
        "signals_set_aside": [_signal_document(signal) for signal in run.set_aside],
        "pinned": sorted(run.pinned),
        "crash_loop": _crash_loop_document(run.crash_loop),
        "stale": run.stale or None,
        "figures": dict(sum_figures(latest.step_results)),
        "published": {name: each.to_document() for name, each in run.published.items()},
        "steps": [step_document(result) for result in latest.step_results],
        "checkpoints": [checkpoint_document(reference, run.checks) for reference in reversed(checkpoints)],
        "left_behind": run.left_behind,
        "is_task": is_task(latest),
    }


def step_document(result: StepResult) -> dict[str, Json]:
    """Return the document of a step's result: one of the `steps` of `show --json`."""
    document = result_document(result)
    fields = {key: document[key] for key in _STEP_KEYS}
    files = {role: list(paths) for role in (READS, WRITES) if (paths := recorded_paths(result, role))}
    return {
        **fields,
        **files,
        "evidence": evidence_document(result),
        "marks": list(result.marks),
        "figures": dict(result.figures),
        "source": dict(result.source) or None,
        "argument_values": dict(result.argument_values) or None,
    }


def checkpoint_document(reference: CheckpointRef, checks: Mapping[int, LaterCheck]) -> dict[str, Json]:
    """Return the document of a checkpoint: one of the `checkpoints` of `show --json`.

    Args:
        reference: the checkpoint.
        checks: later verifications of the run's checkpoints, by sequence.
    """
    later = checks.get(reference.sequence)
    held_at = None if later is None else later.held_at
    if held_at is None and reference.verified:
        held_at = reference.saved_at
    return {
        "checkpoint_id": reference.checkpoint_id,
        "sequence": reference.sequence,
        "attempt": reference.attempt,
        "reason": reference.reason.value,
        "saved_at": encode_time(reference.saved_at),
        "verified": reference.verified,
        "last_verified_at": None if held_at is None else encode_time(held_at),
        "holds": reference.verified if later is None else later.verified,
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


def _crash_loop_document(crashes: CrashCount | None) -> Json:
    if crashes is None:
        return None
    return {"count": crashes.count, "path": crashes.path, "paths": list(crashes.paths), "since": crashes.since}


def _owner_document(owner: Owner | None) -> Json:
    if owner is None:
        return None
    return {"host": owner.host, "pid": owner.pid, "acquired_at": encode_time(owner.acquired_at)}


# The attempts of a run.


def attempt_document(attempt: Attempt) -> Json:
    """Return the document of an attempt: one item of `history` in `show --history --json`."""
    return {
        "attempt": attempt.number,
        "status": attempt.last.status.value,
        "updated_at": encode_time(attempt.last.saved_at),
        "rolled_back_to": encode(attempt.rolled_back_to),
        "checkpoints": [_attempt_checkpoint_document(*each) for each in attempt.checkpoints],
        "results": [{**step_document(result), "standing": str(standing)} for result, standing in attempt.results],
    }


def read_run_history(store: StoreBase, workflow_id: str, run: StoredRun) -> list[Attempt]:
    """Return the attempts of a run, oldest first.

    Raises:
        click.UsageError: the store keeps no earlier attempts.
        CheckpointCorruptedError: its record is damaged.
    """
    if not store.has(Ability.ATTEMPTS):
        raise click.UsageError(f"{store!r} keeps only the current results, so there is no history to show")
    return run_async(read_attempts(store, workflow_id, run.latest, run.checkpoints))


def _attempt_checkpoint_document(reference: CheckpointRef, standing: Standing) -> Json:
    return {**checkpoint_document(reference, {}), "steps": reference.steps, "standing": str(standing)}
