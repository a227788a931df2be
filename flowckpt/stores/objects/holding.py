"""Who holds an attempt: the process that its claim names, while that gives signs of life.

Every object of an attempt is one, and `alive` is overwritten when nothing else was written for a while. Their times
are the server's. They decide only whether a run may be taken without force; that a former owner can write no more is
the work of the numbers.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from flowckpt.checkpoint.reference import Owner
from flowckpt.process import ProcessIdentity, is_alive
from flowckpt.stores.leases import LeaseHolder
from flowckpt.stores.objects.attempt import Tail, claim_in
from flowckpt.stores.objects.bucket import Bucket
from flowckpt.stores.objects.keys import AttemptKeys

_WHOLE_SECOND = 1.0
"""Servers tell times in whole seconds, so a sign of life may be so much younger than it looks."""


def holder_of(bucket: Bucket, keys: AttemptKeys, tail: Tail, workflow_id: str) -> LeaseHolder | None:
    """Return who holds an attempt, alive or not; None where it has ended or was given up.

    Args:
        bucket: the bucket.
        keys: the keys of the attempt.
        tail: where it stands.
        workflow_id: the run, for errors.
    """
    if tail.end is not None or tail.last_sign is None:
        return None
    return holder_in(bucket.get(keys.record(0), workflow_id), tail.last_sign)


def holder_in(claim: bytes | None, last_sign: datetime) -> LeaseHolder | None:
    """Return whom a claim names; None where it cannot be read.

    Args:
        claim: what the object of the claim holds.
        last_sign: the last sign of life.
    """
    said = claim_in(claim)
    if said is None:
        return None
    try:
        seconds = float(said["lease_seconds"])
        return LeaseHolder(_owner(said["owner"]), last_sign + timedelta(seconds=seconds + _WHOLE_SECOND))
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def holds_now(bucket: Bucket, holder: LeaseHolder, workflow_id: str) -> bool:
    """Tell whether a run is held, by the server's clock where a clock must tell.

    Args:
        bucket: the bucket.
        holder: who may hold it.
        workflow_id: the run, for errors.
    """
    owner = holder.owner
    if is_alive(ProcessIdentity(owner.host, owner.boot_id, owner.pid, owner.start_time)) is None:
        return holder.holds(bucket.now(workflow_id))
    return holder.holds(holder.expires_at)


def _owner(said: dict[str, Any]) -> Owner:
    return Owner(**{**said, "acquired_at": datetime.fromisoformat(said["acquired_at"])})
