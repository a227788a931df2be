"""Maps, groups, child workflows and undoing on the command line."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import pytest
from rich.console import Console

from flowckpt.cli.progress.lines import PlainLines
from flowckpt.cli.progress.live import LiveProgress, Running
from flowckpt.events import (
    CheckpointSaved,
    Event,
    RollbackCompleted,
    RollbackStarted,
    StepCompleted,
    StepFailed,
    StepRestored,
    StepStarted,
    WorkflowStarted,
)
from tests.cli.test_live_progress import Above

PIPELINE = """
from flowckpt import parallel, step, workflow

def page(number):
    if number == 7 and limit_is_low():
        raise ValueError("no page 7")
    return number

def limit_is_low():
    import os
    return os.path.exists("low")

def reserve(what):
    return what

def release(what):
    if what == "car":
        raise OSError("no answer")

@workflow
def site(name: str):
    pages = yield step("pages").map(page, range(3)).checkpoint()
    return len(pages)

@workflow
def trip():
    yield step("hotel").python(reserve, "hotel").rollback(release).checkpoint()
    yield step("car").python(reserve, "car").rollback(release).checkpoint()
    pages = yield step("pages").map(page, range(30), concurrency=1).checkpoint()
    sites = yield step("sites").map(site, ["a", "b"], key=str, concurrency=1).checkpoint()
    return len(pages), sites
"""


@pytest.fixture
def trip(flowckpt: Any) -> Any:
    (flowckpt.directory / "trip.py").write_text(PIPELINE)
    return flowckpt


def test_a_large_map_is_a_few_lines_and_its_failures(trip: Any) -> None:
    (trip.directory / "low").touch()
    ran = trip("run", "trip.py:trip", "--id", "one").expect(1)
    lines = ran.told
    assert "pages: 3/30" in lines and "pages: 6/30" in lines
    assert not any(line.startswith("pages/[3]") for line in lines)
    assert any(line.startswith("pages/[7]: failed") for line in lines)
    assert "car: could not be undone: OSError: no answer" in lines
    assert "flowckpt: step 'car' could not be undone: OSError: no answer" in lines
    assert "undone: 1, 1 could not be undone" in ran.out
    assert "steps: 11 executed, 0 restored, 2 failed" in ran.out
    shown = trip("show", "one").expect(0).out
    assert "\nundone: hotel\n" in shown and "\ncould not be undone: car\n" in shown


def test_json_tells_what_was_undone_and_what_could_not_be(trip: Any) -> None:
    (trip.directory / "low").touch()
    document = trip("run", "trip.py:trip", "--id", "one", "--json").expect(1).document
    assert document["undone"] == ["hotel"]
    assert [(each["path"], each["type"]) for each in document["rollback_failures"]] == [("car@rollback", "OSError")]


def test_no_rollback_undoes_nothing_and_a_resume_runs_only_what_failed(trip: Any) -> None:
    (trip.directory / "low").touch()
    ran = trip("run", "trip.py:trip", "--id", "one", "--no-rollback", "--json").expect(1)
    assert (ran.document["undone"], ran.document["rollback_failures"]) == ([], [])
    assert trip("resume", "one", "--no-rollback", "--json").expect(1).document["undone"] == []
    (trip.directory / "low").unlink()
    assert trip("resume", "one", "--json").expect(0).document["steps"] == {"executed": 35, "restored": 9, "failed": 0}


def test_the_steps_are_a_tree_whose_large_maps_are_counted(trip: Any) -> None:
    trip("run", "trip.py:trip", "--id", "one").expect(0)
    out = trip("show", "one", "--steps").expect(0).out
    names = [line.split("  python")[0].split("  map")[0].split("  workflow")[0].rstrip() for line in out.splitlines()]
    assert "  pages/[…]" in out and "30 ok" in out and "pages/[12]" not in out
    at = names.index("sites")
    assert names[at : at + 4] == ["sites", "  sites/[a]", "    sites/[a]/pages", "      sites/[a]/pages/[0]"]
    assert "  pages/[12]" in trip("show", "one", "--steps", "--members").expect(0).out
    assert "steps: 44 recorded, 44 of them executed" in out
    trip("show", "one", "--members").expect(2)


def test_a_member_can_be_asked_about_run_again_and_edited(trip: Any) -> None:
    trip("run", "trip.py:trip", "--id", "one").expect(0)
    assert trip("plan", "one", "pages/[3]").expect(0).out.startswith("pages/[3]: reuse")
    assert trip("plan", "one").expect(0).out.count("\n") < 20
    again = trip("resume", "one", "--from", "pages/[3]", "--json").expect(0).document
    assert again["steps"] == {"executed": 13, "restored": 31, "failed": 0}
    trip("fork", "one", "--id", "two", "--set", "pages/[3]=99").expect(0)
    trip("resume", "two").expect(0)
    steps = {each["path"]: each for each in trip("show", "two", "--json").expect(0).document["steps"]}
    assert steps["pages/[3]"]["output"] == 99


def test_events_tell_each_member(trip: Any) -> None:
    events = [json.loads(line) for line in trip("run", "trip.py:trip", "--events").expect(0).out.splitlines()]
    started = {event["path"]: event for event in events if event["event"] == "StepStarted"}
    assert (started["pages"]["members"], started["pages/[4]"]["members"]) == (30, None)
    assert sum(path.startswith("pages/[") for path in started) == 30


def a_map(total: int | None, done: int) -> Iterator[Event]:
    yield WorkflowStarted("one", "shop", 1)
    yield StepRestored("one", "pages/[0]", True, 1.0)
    yield StepStarted("one", "pages", "map", total)
    for number in range(1, done):
        yield StepStarted("one", f"pages/[{number}]", "python")
        if number == 2:
            yield StepFailed("one", f"pages/[{number}]", 1.0, 1, "ValueError", "odd")
        else:
            yield StepCompleted("one", f"pages/[{number}]", 1.0)
            yield CheckpointSaved("one", f"pages/[{number}]", 3, "step", 4)


def drawn(events: Iterator[Event]) -> tuple[list[str], list[str]]:
    """Return the lines above what is drawn, and what is drawn."""
    out = io.StringIO()
    console = Console(file=out, width=100, highlight=False)
    progress = LiveProgress(0, console)
    progress._screen = above = Above()
    for event in events:
        progress.show(event)
    console.print(progress._frame())
    progress._show_line()
    return above.lines, [line.rstrip() for line in out.getvalue().splitlines()]


@pytest.mark.parametrize(("total", "said"), [(1000, "17/1000, 1 failed"), (None, "pages  17, 1 failed")])
def test_a_map_that_runs_is_drawn_as_one_line_with_its_failures(total: int | None, said: str) -> None:
    above, below = drawn(a_map(total, 17))
    assert sum(said in line for line in below) == 1
    assert [line for line in above if "pages/[" in line] == ["✗ pages/[2]  1 ms  ValueError: odd"]
    assert below[-1].startswith("16 executed, 1 restored, 1 failed")


def test_a_map_has_a_bar_a_rate_and_the_time_left() -> None:
    progress = LiveProgress(0, Console(file=io.StringIO(), width=100))
    for event in a_map(100, 51):
        progress.show(event)
    text = progress._running_line("*", "pages", Running(0.0), 10.0).plain
    assert text.endswith("51/100, 1 failed  5.0/s  9.80 s left  10.00 s"), text
    assert text.count("━") == 10 and text.count("─") == 10


def test_a_map_that_has_ended_collapses_into_a_line() -> None:
    def whole() -> Iterator[Event]:
        yield from a_map(17, 17)
        yield StepCompleted("one", "pages", 20.0)

    above, below = drawn(whole())
    assert above[-1] == "✓ pages  17/17, 1 failed  20 ms"
    assert below[0].startswith("17 executed, 1 restored, 1 failed") and len(below) == 1


def test_a_small_group_shows_its_steps() -> None:
    def group() -> Iterator[Event]:
        yield WorkflowStarted("one", "shop", 1)
        yield StepStarted("one", "parallel", "parallel", 2)
        yield StepStarted("one", "parallel/[a]", "python")
        yield StepCompleted("one", "parallel/[a]", 1.0)

    assert "✓ parallel/[a]  1 ms" in drawn(group())[0]


def test_undoing_is_drawn_and_counted() -> None:
    def undoing() -> Iterator[Event]:
        yield WorkflowStarted("one", "shop", 1)
        yield RollbackStarted("one", "a")
        yield RollbackCompleted("one", "a", 1.0)
        yield RollbackStarted("one", "b")
        yield RollbackCompleted("one", "b", 1.0, "OSError", "no\x1banswer")
        yield RollbackStarted("one", "c")

    above, below = drawn(undoing())
    assert "undoing c" in below[0]
    assert "1 undone, 1 could not be undone" in below[-1]
    assert above[1:] == ["a undone", "b could not be undone: OSError: no\\x1banswer"]


def test_a_map_of_unknown_size_is_told_by_the_hundred(capsys: pytest.CaptureFixture[str]) -> None:
    lines = PlainLines()
    for event in a_map(None, 250):
        lines.show(event)
    told = [line.partition(" ")[2] for line in capsys.readouterr().err.splitlines()]
    assert [line for line in told if line.startswith("pages: ") and "started" not in line] == [
        "pages: 100, 1 failed",
        "pages: 200, 1 failed",
    ]
