"""The lines of what has ended, and the drawing of what runs."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from flowckpt.cli.progress.live import LiveProgress
from flowckpt.events import (
    ApprovalVoided,
    CheckpointFailed,
    CheckpointSaved,
    EvidenceFailed,
    EvidenceVerified,
    SignalSetAside,
    StepAdopted,
    StepCompleted,
    StepProgress,
    StepRestored,
    StepStarted,
    StepStateDropped,
    WorkflowResumed,
)


class Above:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def show_above(self, line: Any) -> None:
        self.lines.append(line.plain)

    def finish_line(self) -> None:
        pass


def test_a_few_marks_say_what_was_found():
    out = io.StringIO()
    console = Console(file=out, width=120, highlight=False)
    progress = LiveProgress(1, console)
    progress._screen = above = Above()
    for event in (
        WorkflowResumed("one", "shop", 2, 3, "x"),
        EvidenceVerified("one", "fetch", "resume", 1),
        StepRestored("one", "fetch", True, 1.0),
        EvidenceFailed("one", "clean\x1b", "resume", "0 of 1", ("clean.csv is gone",)),
        EvidenceVerified("one", "load", "resume", 1),
        StepStarted("one", "load", "python"),
        StepCompleted("one", "load", 5.0),
        StepStarted("one", "clean\x1b", "python"),
        EvidenceVerified("one", "clean\x1b", "now", 1),
        StepCompleted("one", "clean\x1b", 5.0),
        StepAdopted("one", "pay"),
        CheckpointSaved("one", "pay", 4, "step", 3),
    ):
        progress.show(event)
    console.print(progress._frame())
    assert above.lines == [
        "shop one  attempt 2",
        "clean\\x1b: evidence does not hold: clean.csv is gone",
        "✓ 1 restored from one (attempt 1), the evidence of 1 holds",
        "✓ load  5 ms",
        "✓ clean\\x1b  5 ms  evidence holds",
        "✓ pay  adopted, not run: it was done  saved",
    ]
    assert out.getvalue().startswith("2 executed, 2 restored, 0 failed")


def test_what_went_wrong_has_the_same_words_as_a_plain_line():
    progress = LiveProgress(0, Console(file=io.StringIO(), width=120))
    progress._screen = above = Above()
    for event in (
        StepStateDropped("one", "fetch", "its code changed"),
        ApprovalVoided("one", "review", "ann", "the plan changed"),
        SignalSetAside("one", "order\x1b", "order", "bob", "s1", "seven is not a number"),
        CheckpointFailed("one", "fetch", 4, "step", "OSError: disk full"),
    ):
        progress.show(event)
    assert above.lines == [
        "fetch: its saved state is dropped: its code changed",
        "review: the approval by ann is void and is asked for again: the plan changed",
        "order\\x1b: signal order is set aside; the step waits for another one: seven is not a number",
        "checkpoint fetch not saved: OSError: disk full",
    ]


def test_nothing_is_drawn_of_a_resume_that_is_refused():
    out = io.StringIO()
    console = Console(file=out, width=80)
    progress = LiveProgress(1, console)
    progress._screen = Above()
    console.print(progress._frame())
    assert out.getvalue() == ""
    progress._started_at -= 2
    console.print(progress._frame())
    assert "reading the record" in out.getvalue()


def test_a_step_that_says_how_far_it_is_has_a_bar():
    out = io.StringIO()
    console = Console(file=out, width=120, highlight=False)
    progress = LiveProgress(0, console)
    for event in (
        StepStarted("one", "fetch", "python"),
        StepProgress("one", "fetch", 1, 4, "part\x1b"),
        StepProgress("one", "fetch", 3, 4, "part\x1b"),
        StepStarted("one", "scan", "python"),
        StepProgress("one", "scan", 1234.5, None),
        StepProgress("one", "gone", 1),
        WorkflowResumed("one", "shop", 2, 3, "x"),
    ):
        progress.show(event)
    console.print(progress._frame())
    text = out.getvalue()
    assert "3 of 4 (75 %), part\\x1b" in text and "1 of 4" not in text
    assert text.count("━" if "━" in text else "#") == 15
    assert "1,234.50" in text and "gone" not in text
    progress.show(StepCompleted("one", "fetch", 5.0))
    assert "fetch" not in progress._running
