"""A run with every kind of checkpoint and every kind of field, the same each time: what the golden files hold."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import attrs

from flowckpt.core.records import CheckpointData, Reason, Status, StepError, StepResult
from flowckpt.core.system.process import ProcessIdentity
from flowckpt.testing import FakeClock

RUN = "golden"
PROCESS = ProcessIdentity("host", "00000000-0000-0000-0000-000000000000", 4242, 77)
NEW = {"from_a_newer_version": {"list": [1, None, "ü"]}}
START = datetime(2026, 11, 20, 15, 30, tzinfo=UTC)
LARGE = "a large value, 2^16 bytes and more: " + "ä☃" * 13_200


def clock():
    return FakeClock(START)


def at(seconds):
    return START + timedelta(seconds=seconds, microseconds=250_000)


CLAIM = {
    "evidence_type": "file_sha256",
    "description": "the content of report.html",
    "expected": {"path": "report.html", "sha256": "ab" * 32},
    "state": "captured",
    "captured": {"at": "2026-11-20T15:30:01+00:00", "signature": [1, 2, 3, 4, 5], "facts": {}, **NEW},
    **NEW,
}
ERROR = StepError(
    "shop.OutOfStock", "no row «x»", ("shop.OutOfStock", "ValueError"), "Traceback …", "a%2Fb[1]", 2, ("a%2Fb[1]",), NEW
)

FETCHED = StepResult(
    "fetch",
    output={"rows": [1, 2.5, None, True], "pair": (1, "zwei"), 3: b"\x00\xff", "nan": float("inf")},
    duration_ms=5234,
    started_at=at(1),
    function="pipeline:fetch",
    location="pipeline.py:12",
    fingerprint="1:Zm9vYmFyYmF6cXV4MTIzNA",
    arguments={"limit": 1000, "source": "cXV4MTIzNGZvb2JhcmJheg", "connection": "?"},
    evidence={
        "pack": {"evidence": [CLAIM], "require_all": True, **NEW},
        "outcome": "verified",
        "verdicts": [{"status": "verified", "verified_at": "2026-11-20T15:30:02Z", **NEW}],
        "exit_code": 0,
        **NEW,
    },
    extra=NEW,
)
COMMANDED = StepResult("make", "command", output="ok", duration_ms=12.5, marks=("at_most_once",), started_at=at(2))
LEFT_BEHIND = StepResult("wrong", output=Decimal("1.10"), duration_ms=1, started_at=at(3))
FAILED = StepResult(
    "a/b",
    success=False,
    error=ERROR,
    duration_ms=0.25,
    path="a%2Fb[1]",
    started_at=at(4),
    attempt=2,
    tries=2,
    version="2",
    evidence={
        "pack": {"evidence": [{**CLAIM, "transient": True}], "require_all": False, "allow_partial": True},
        "outcome": "failed",
        "verdicts": [{"status": "failed", "verified_at": "2026-11-20T15:30:04Z", "error": "it is missing"}],
    },
)
PAGE = StepResult("pages", output=3, duration_ms=2, path="pages/[0]", attempt=2, started_at=at(4))
PAGES = StepResult("pages", "map", output=[3], duration_ms=3, attempt=2, started_at=at(4))
LOADED = StepResult("load", output=LARGE, duration_ms=3, started_at=at(5), attempt=4)

BASE = CheckpointData(
    "@started",
    "etl",
    "sha256:v1:" + "ab" * 32,
    (),
    START,
    reason=Reason.STARTED,
    inputs={"source": Path("orders.csv"), "limit": 1000},
    fingerprint="ast:v1:00",
    metadata={"tags": {"team": "data"}, "target": {"file": "/pipeline.py", "name": "etl"}},
)


def _saved(sequence, attempt, reason, checkpoint_id, results, **fields):
    return attrs.evolve(
        BASE,
        checkpoint_id=checkpoint_id,
        sequence=sequence,
        attempt=attempt,
        reason=reason,
        status=fields.pop("status", None)
        or attrs.fields(CheckpointData).status.default.factory(attrs.evolve(BASE, reason=reason)),
        step_results=results,
        saved_at=at(10 * sequence),
        **fields,
    )


_ONE, _TWO = [FETCHED], [FETCHED, COMMANDED]
_RECHECKED = ({"path": "fetch", "outcome": "verified", "verified_at": "2026-11-20T15:31:00Z", **NEW},)

ATTEMPTS = {
    1: [
        _saved(1, 1, Reason.STARTED, "@started", []),
        _saved(2, 1, Reason.STEP, "fetch", _ONE, extra=NEW),
        _saved(3, 1, Reason.IN_DOUBT, "@begun", _ONE, in_flight=("make", "b[1]")),
        _saved(4, 1, Reason.TRIGGER, "@every.1", _TWO),
        _saved(5, 1, Reason.MANUAL, "mine", _TWO, snapshot={"seen": {1, 2, 3}, "at": START}),
        _saved(6, 1, Reason.STEP, "wrong", [*_TWO, LEFT_BEHIND]),
        _saved(7, 1, Reason.SUSPENDED, "@suspended", [*_TWO, LEFT_BEHIND], in_flight=("approval",)),
    ],
    2: [  # goes back behind "mine"
        _saved(8, 2, Reason.STARTED, "@started.2", _TWO, evidence=_RECHECKED),
        _saved(9, 2, Reason.STEP, "pages", [*_TWO, PAGE, PAGES]),
        _saved(10, 2, Reason.ROLLBACK, "@rollback", [*_TWO, PAGE, PAGES, FAILED], in_flight=("make",)),
        _saved(11, 2, Reason.FAILED, "@failed", [*_TWO, PAGE, PAGES, FAILED], error=ERROR, extra=NEW),
    ],
    3: [_saved(12, 3, Reason.CANCELLED, "@cancelled", _TWO, status=Status.CANCELLED)],
    4: [
        _saved(13, 4, Reason.STEP, "load", [*_TWO, LOADED], inputs={"source": Path("other.csv"), "limit": 2**70}),
        _saved(14, 4, Reason.COMPLETED, "@completed", [*_TWO, LOADED], output=(LARGE, 1)),
    ],
}
DELETED = "@every.1"
LIVE = [
    data
    for attempt, kept in ((1, 5), (2, 8), (3, 12), (4, 14))
    for data in ATTEMPTS[attempt]
    if data.sequence <= kept and data.checkpoint_id != DELETED
]
"""The checkpoints that belong to the run in the end, oldest first."""

FORMER = {
    "number": 1,
    "started_at": "2026-11-20T15:30:00.000000Z",
    "ended_at": "2026-11-20T15:30:01.000000Z",
    "inputs_hash": "sha256:v1:" + "cd" * 32,
    "attempts": [1, 1],
    "steps": 2,
}
GENERATION = {
    "number": 2,
    "started_at": "2026-11-20T15:30:02.000000Z",
    "attempt": 2,
    "first_inputs": "sha256:v1:" + "cd" * 32,
    "run_started_at": "2026-11-20T15:30:00.000000Z",
    "former": [FORMER],
}
CONTINUED = _saved(
    8, 2, Reason.CONTINUED, "@continued.2", [], metadata={**BASE.metadata, "birth": "ef" * 16, "generation": GENERATION}
)

EXPORTED = {
    Reason.CONTINUED: CONTINUED,
    **{data.reason: data for number in reversed(ATTEMPTS) for data in reversed(ATTEMPTS[number])},
}
"""A checkpoint of each kind."""


async def save(store):
    """Save the run, attempt by attempt, and delete one checkpoint."""
    for number, saved in ATTEMPTS.items():
        lease = await store.acquire(RUN)
        assert lease.attempt == number
        for data in saved:
            await store.save(RUN, data)
        if number == 4:
            await store.delete_checkpoint(RUN, DELETED)
        await store.release(RUN)
