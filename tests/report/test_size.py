"""A report of 100,000 steps stays small."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from flowckpt.core.records import CheckpointData, Reason, Status, StepResult
from flowckpt.core.records.listing import CheckpointRef
from flowckpt.maintenance.attempts import Attempt, Standing
from flowckpt.report.document import report_of
from flowckpt.report.page import page

START = datetime(2026, 1, 1, tzinfo=UTC)


def test_a_report_of_100_000_steps_is_smaller_than_5_mb():
    results = [
        StepResult(
            "fan",
            path=f"fan/[{number}]",
            output={"number": number, "rows": ["text"] * 20, "ok": True},
            started_at=START + timedelta(milliseconds=3 * number),
            duration_ms=2.5,
            function="module:function",
            arguments={"item": number, "text": "q7Wc1nGx3n5m8s9d0f1g2h"},
        )
        for number in range(100_000)
    ]
    results.append(StepResult("fan", "map", started_at=START, duration_ms=300_000.0))
    latest = CheckpointData(
        "@completed", "big", "sha256:v1:0", results, START + timedelta(minutes=5), reason=Reason.COMPLETED
    )
    saved = CheckpointRef("run", "@started", 1, 1, Reason.STARTED, START, 0, 0)
    attempt = Attempt(1, latest, [(saved, Standing.COUNTS)], [(each, Standing.COUNTS) for each in results])
    text = page(report_of("run", latest, Status.COMPLETED, [attempt], now=START))
    assert len(text.encode()) < 5_000_000
    assert "Completed after 5 min. 100000 steps executed." in text
