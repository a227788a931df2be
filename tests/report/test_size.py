"""A report of 100,000 steps stays small, and a browser draws only the rows in view."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from flowckpt.core.records import CheckpointData, Reason, Status, StepResult
from flowckpt.core.records.listing import CheckpointRef
from flowckpt.maintenance.attempts import Attempt, Standing
from flowckpt.report.document import make_report
from flowckpt.report.page import render_page

START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def text():
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
    return render_page(make_report("run", latest, Status.COMPLETED, [attempt], now=START))


def test_a_report_of_100_000_steps_is_smaller_than_5_mb(text):
    assert len(text.encode()) < 5_000_000
    assert "Completed after 5 min. 100001 steps executed." in text


SCROLL = """async () => {
    const frames = [...document.querySelectorAll(".rows")], most = [];
    for (const frame of frames) {
        for (let part = 0; part <= 10; part++) {
            const before = new Set(frame.querySelectorAll(".row"));
            frame.scrollTop = (frame.scrollHeight * part) / 10;
            await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
            const rows = [...frame.querySelectorAll(".row")];
            most.push(rows.length, rows.filter((row) => !before.has(row)).length);
        }
    }
    return [Math.max(...most), document.querySelectorAll("*").length, frames.map((frame) => frame.getAttribute("aria-rowcount"))];
}"""


def test_a_browser_draws_only_the_rows_in_view(text, tab, tmp_path):
    (tmp_path / "big.html").write_text(text)
    tab.goto(f"file://{tmp_path}/big.html")
    tab.locator(".waterfall .row").first.focus()
    for key in ("ArrowRight", "ArrowDown", "ArrowRight"):  # opens the map, and then its members
        tab.keyboard.press(key)
    most, elements, rows = tab.evaluate(SCROLL)
    assert most < 100 and elements < 1500 and rows == ["100002", "100001"]
    assert tab.locator("#steps .row").last.inner_text().startswith("fan/[99999]") and tab.said == []
