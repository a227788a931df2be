"""What the tests of export, import and copy share: a run to move, and what is asked of it where it went."""

from __future__ import annotations

import asyncio
import io
from datetime import timedelta
from hashlib import sha256

import attrs

from flowckpt.core.records import Reason, Status, StepError
from flowckpt.core.system.blocking import run_alone
from flowckpt.maintenance.export import read_whole_run, run_lines
from flowckpt.maintenance.portable import Counts, end_line
from flowckpt.testing.contract import NOON, checkpoint, results

LARGE = "ü" * 40_000


def done(work):
    """Run something to its end, in a loop where nothing else runs, as the command line does."""
    with asyncio.Runner() as runner:
        return run_alone(runner, work)


def history(large=LARGE):
    """The checkpoints of a run of three attempts; the second went back behind what the first had saved."""
    metadata = {"tags": {"team": "data"}, "target": {"file": "/gone/etl.py", "name": "etl"}, "defaulted": ["limit"]}
    common = {"metadata": metadata, "inputs": {"source": "a.csv", "limit": 3}, "fingerprint": "ast:v1:00"}
    first = results({1: ("a",)}, large, b"\x00")
    failed = attrs.evolve(results(None, first=3)[0], success=False, error=StepError("ValueError", "no\nline"))
    other = results([large, large], 7, first=2)
    at = NOON
    made = []
    for attempt, reason, steps, fields in (
        (1, Reason.STARTED, [], {}),
        (1, Reason.STEP, first[:1], {"checkpoint_id": "step-1"}),
        (1, Reason.TRIGGER, first[:2], {"checkpoint_id": "again", "snapshot": {"large": large}}),
        (1, Reason.IN_DOUBT, first[:2], {"checkpoint_id": "again", "in_flight": ("pay",)}),
        (1, Reason.FAILED, [*first[:2], failed], {"error": StepError("ValueError", "no", ("ValueError",))}),
        (2, Reason.STARTED, first[:1], {"extra": {"later": [1]}}),
        (2, Reason.STEP, [*first[:1], *other[:1]], {"evidence": ({"claim": 1},)}),
        (4, Reason.MANUAL, [*first[:1], *other[:1]], {"status": Status.SUSPENDED, "checkpoint_id": "@x"}),
        (4, Reason.COMPLETED, [*first[:1], *other], {"output": (large, 1.5)}),
    ):
        at += timedelta(microseconds=1500)
        number = len(made) + 1 + (attempt > 1) * 2
        made.append(checkpoint(number, steps, attempt=attempt, reason=reason, saved_at=at, **{**common, **fields}))
    return made


def fill(store, run, large=LARGE):
    """Put the run into a store, as an engine would: attempt by attempt."""
    attempt = 0
    for data in history(large):
        if data.attempt != attempt:
            done(store.release(run))
            attempt = data.attempt
        done(store.save(run, data))
    done(store.release(run))


def exported(store, run="run", name="run"):
    """All bytes of the exported run, under a name of ours: equal for equal runs."""
    return b"".join(run_lines(name, done(read_whole_run(store, run)).checkpoints))


def sealed(lines):
    """A file of lines with a last line that proves them, whatever they say."""
    counts = {
        "attempts": b'{"attempt":',
        "checkpoints": b'{"checkpoint":',
        "results": b'{"result":',
        "blobs": b'{"blob":',
    }
    found = Counts(**{name: sum(line.startswith(begin) for line in lines) for name, begin in counts.items()})
    body = b"".join(lines)
    return body + end_line(found, sha256(body).hexdigest())


def lines_of(data):
    """The lines of an exported run but the last."""
    return io.BytesIO(data).readlines()[:-1]
