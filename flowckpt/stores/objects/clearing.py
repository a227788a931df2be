"""The end of a run in a bucket: a tombstone first, then its objects.

The tombstone is the end of the newest attempt, so a clear is fenced like a save. What stays for good is the word that
this life of the run has ended, and the ends that fence writers which may still be asleep: some hundred bytes each. The
numbers of a life are never used again; the run begins its next life with attempt 1.
"""

from __future__ import annotations

from flowckpt.stores.objects.attempt import RELEASED, end_in, is_end
from flowckpt.stores.objects.bucket import Bucket
from flowckpt.stores.objects.layout import AttemptKeys, InflationError, RunKeys, run_keys, unpacked


def finish_clearing(bucket: Bucket, keys: RunKeys, last: int, workflow_id: str) -> None:
    """Remove what a cleared run has.

    Args:
        bucket: the bucket.
        keys: the keys of the run.
        last: the attempt that has the tombstone.
        workflow_id: the run, for errors.
    """
    bucket.create_all([(keys.cleared, lambda: b'{"flowckpt":"cleared"}\n')], workflow_id, "clear")
    for under in (keys.values, keys.signals):
        bucket.delete([each.key for each in bucket.objects(under, workflow_id)], workflow_id, "clear")
    sweep(bucket, [keys.at(attempt) for attempt in keys.attempts if attempt <= last], workflow_id)


def sweep_former(bucket: Bucket, keys: RunKeys, workflow_id: str) -> None:
    """Remove what the former lives of a run have left: attempts, and messages and values that came when these had ended.

    Nobody reads a life that has ended, and nothing that is saved in a later one names anything in it. So this is safe
    beside whoever is at work, at any time.

    Args:
        bucket: the bucket.
        keys: the keys of the run.
        workflow_id: the run, for errors.
    """
    sweep(bucket, list(keys.former), workflow_id)
    sweep_late(bucket, keys, workflow_id)


def sweep_late(bucket: Bucket, keys: RunKeys, workflow_id: str) -> None:
    """Remove the messages and values of former lives: they came late, or whoever cleared these died in the middle.

    Args:
        bucket: the bucket.
        keys: the keys of the run.
        workflow_id: the run, for errors.
    """
    for under in (*keys.former_signals, *keys.former_values):
        bucket.delete([each.key for each in bucket.objects(under, workflow_id)], workflow_id, "clear")


def sweep_values(bucket: Bucket, keys: RunKeys, workflow_id: str) -> None:
    """Remove the large values of a life, where that has ended.

    Args:
        bucket: the bucket.
        keys: the keys of the run in that life.
        workflow_id: the run, for errors.
    """
    names = bucket.names(keys.run, workflow_id)
    if run_keys(keys.run, names).life > keys.life:
        bucket.delete([each.key for each in bucket.objects(keys.values, workflow_id)], workflow_id, "clear")


def sweep(bucket: Bucket, attempts: list[AttemptKeys], workflow_id: str) -> None:
    """Remove attempts of a life that has ended, in any state in which an earlier try may have left them.

    Args:
        bucket: the bucket.
        attempts: their keys.
        workflow_id: the run, for errors.
    """
    for keys in attempts:
        listed = [each.key for each in bucket.objects(keys.root, workflow_id)]
        kept = _fences(bucket, [key for key in listed if key.startswith(f"{keys.records}/")], workflow_id)
        bucket.delete([key for key in listed if key not in kept], workflow_id, "clear")


def _fences(bucket: Bucket, records: list[str], workflow_id: str) -> set[str]:
    """Return the ends that fence a writer which may still be asleep; ends stand behind all records."""
    kept = set()
    for key in reversed(records):
        try:
            content = unpacked(bucket.get(key, workflow_id) or b"")
            if not is_end(content):
                break
            if end_in(content).kind != RELEASED:
                kept.add(key)
        except (InflationError, ValueError, KeyError, TypeError):  # damaged, so it is kept, to be safe
            kept.add(key)
    return kept
