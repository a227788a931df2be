"""What the progress says of evidence: in lines of text, and as events."""

from __future__ import annotations

import json


def test_evidence_is_told_in_lines(shop, tmp_path):
    (tmp_path / "clean.csv").unlink()
    ran = shop("resume", "one").expect(0)
    lines = ran.err.splitlines()
    assert lines[:5] == [
        "run one of shop: resumed from checkpoint @failed, attempt 2",
        "fetch: evidence still holds (1 claim)",
        "fetch: restored",
        "clean: evidence no longer holds: 0 of 1 claims hold, 1 must",
        "  clean.csv does not exist",
    ]
    assert "clean: evidence holds (1 claim)" in lines and "moment=" not in ran.err


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
    from flowckpt.cli.progress.plain import PlainLines
    from flowckpt.events import EvidenceVerified, StepAdopted, StepCompleted, StepOutput

    lines = PlainLines()
    for event in (
        StepAdopted("one", "a\x1b"),
        StepCompleted("one", "b", 1.0),
        EvidenceVerified("one", "b", "now", 2),
        StepOutput("one", "b", "stderr", "o\x07h"),
    ):
        lines.tell(event)
    assert capsys.readouterr().err.splitlines() == [
        "a\\x1b: adopted, not run: its evidence proves that it was done",
        "b: done in 1 ms",
        "b: evidence holds (2 claims)",
        "b ! o\\x07h",
    ]
