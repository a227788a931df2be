"""What the progress says of evidence: in lines of text, and as events."""

from __future__ import annotations

import json
import re


def test_evidence_is_told_in_lines(shop, tmp_path):
    (tmp_path / "clean.csv").unlink()
    ran = shop("resume", "one").expect(0)
    assert ran.told[:4] == [
        "run one of shop: resumed from checkpoint @failed, attempt 2",
        "1 step restored from the record, the evidence of 1 holds",
        "clean: evidence no longer holds: 0 of 1 claims hold, 1 required",
        "  clean.csv does not exist",
    ]
    (clean,) = [line for line in ran.told if line.startswith("clean: done in")]
    assert clean.endswith(", evidence holds (1 claim)") and "moment=" not in ran.err


def test_a_refused_resume_does_not_say_that_it_was_resumed(shop):
    shop.edit("return rows * 2", "return rows * 2 + 0")
    ran = shop("resume", "one").expect(10)
    assert "resumed" not in ran.err and "restored" not in ran.err


def test_evidence_is_told_as_events(shop, tmp_path):
    (tmp_path / "clean.csv").unlink()
    events = [json.loads(line) for line in shop("resume", "one", "--events").expect(0).out.splitlines()]
    told = [(event["event"], event.get("path"), event.get("moment")) for event in events]
    assert told[:3] == [
        ("WorkflowResumed", None, None),
        ("EvidenceVerified", "fetch", "resume"),
        ("StepRestored", "fetch", None),
    ]
    failed = next(event for event in events if event["event"] == "EvidenceFailed")
    assert failed["details"] == ["clean.csv does not exist"] and failed["path"] == "clean"
    assert ("EvidenceVerified", "clean", "now") in told


def test_adoption_is_told_as_an_event_and_lines(capsys):
    from flowckpt.cli.progress.lines import PlainLines
    from flowckpt.events import EvidenceVerified, StepAdopted, StepCompleted, StepOutput, StepRestored

    lines = PlainLines()
    for event in (
        StepAdopted("one", "a\x1b"),
        EvidenceVerified("one", "b", "now", 2),
        StepCompleted("one", "b", 1.0, False, {"rows": 5}),
        StepOutput("one", "b", "stderr", "o\x07h"),
        *(StepRestored("one", f"c[{number}]", True, 1.0) for number in range(1000)),
        StepRestored("one", "d", False, 1.0),
    ):
        lines.show(event)
    lines.stop()
    told = capsys.readouterr().err.splitlines()
    assert all(re.match(r"\d\d:\d\d:\d\d ", line) for line in told)
    assert [line.partition(" ")[2] for line in told] == [
        "a\\x1b: adopted, not run: its evidence proves that it was done",
        "b: done in 1 ms, evidence holds (2 claims), rows=5",
        "b ! o\\x07h",
        "1001 steps restored from the record",
        "d: restored, with its failure",
    ]
