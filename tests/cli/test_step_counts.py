"""All commands count the steps of a run alike: one for each row of `show --steps`."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

PIPELINE = """
from pathlib import Path
from flowckpt import parallel, step, workflow

def double(number):
    return 2 * number

def add(numbers):
    if not Path("ready").exists():
        raise ValueError("not ready")
    return sum(numbers)

@workflow
def child(number: int):
    return (yield step("inner").python(double, number))

@workflow
def nested():
    numbers = yield step("doubled").map(double, [1, 2, 3])
    yield parallel(step("a").python(double, 1), step("b").python(double, 2))
    yield step("below").workflow(child, number=7)
    return (yield step("add").python(add, numbers).checkpoint())
"""
ROWS = 10
"""The map and its three members, the group and its two, the child and its step, and the last step."""


@pytest.fixture
def nested(flowckpt: Any) -> Any:
    (flowckpt.directory / "nested.py").write_text(PIPELINE)
    return flowckpt


def listed(nested: Any) -> tuple[int, ...]:
    """Return how many steps the run has according to `list`, its JSON, `plan`, `show` and its table."""
    table = nested("list").expect(0).out.splitlines()
    steps = table[1].split()[table[0].split().index("STEPS")]
    shown = nested("show", "one", "--steps").expect(0).out
    recorded = re.search(r"^steps: (\d+) recorded", shown, re.MULTILINE)
    assert recorded is not None
    document = nested("list", "--json").expect(0).document[0]
    plan = nested("plan", "one", "--json").document
    rows = shown.partition("STEP  ")[2].splitlines()[1:]
    return int(steps), document["steps"], len(plan["steps"]), int(recorded[1]), len(rows)


def test_all_commands_count_a_map_a_group_and_a_child_like_their_members(nested: Any) -> None:
    ran = nested("run", "nested.py:nested", "--id", "one").expect(1)
    assert f"steps: {ROWS} executed, 0 restored, 1 failed" in ran.out
    assert listed(nested) == (ROWS,) * 5
    assert f"{ROWS} of them executed by attempt 1" in nested("show", "one").out
    (nested.directory / "ready").touch()
    resumed = nested("resume", "one").expect(0)
    assert f"{ROWS - 1} steps restored from the record" in resumed.told
    assert f"steps: 1 executed, {ROWS - 1} restored, 0 failed" in resumed.out
    assert listed(nested) == (ROWS,) * 5
    assert f"{ROWS} recorded, 1 of them executed by attempt 2" in nested("show", "one").out
    assert f"nothing to run: all {ROWS} results are reused" in nested("plan", "one").out
    again = nested("resume", "one", "--json").expect(0).document
    assert again["steps"] == {"executed": 0, "restored": ROWS, "failed": 0}


def test_the_events_count_like_the_summary(nested: Any) -> None:
    (nested.directory / "ready").touch()
    ended = [
        json.loads(line)
        for line in nested("run", "nested.py:nested", "--id", "one", "--events").expect(0).out.splitlines()
    ]
    assert sum(event["event"] == "StepCompleted" for event in ended) == ROWS
    assert (ended[-1]["executed"], ended[-1]["restored"]) == (ROWS, 0)
    again = [json.loads(line) for line in nested("resume", "one", "--events").expect(0).out.splitlines()]
    assert (again[-1]["executed"], again[-1]["restored"]) == (0, ROWS)
