"""When a run that keeps dying is left alone: the rules, over records alone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowckpt.core.records import CheckpointData, PartialState, Status, StepResult
from flowckpt.engine.rules.crash_loop import CrashCount, crash_count_of, limit_of

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def record(results: int = 0, **fields: Any) -> CheckpointData:
    done = tuple(StepResult(f"done[{number}]") for number in range(results))
    return CheckpointData("c", "flow", "sha256:v1:0", done, NOON, reason="started", **fields)


def resumed(latest: CheckpointData, crashes: CrashCount, **changes: Any) -> CheckpointData:
    """The checkpoint that the resume saves, and perhaps what its attempt saves after it."""
    count, partial = len(latest.step_results), latest.partial
    metadata = crashes.add_to_metadata(latest.metadata, results=count, partial=partial)
    return attrs.evolve(latest, metadata=metadata, saved_at=latest.saved_at + timedelta(seconds=1), **changes)


def test_deaths_at_the_same_step_add_up_and_remember_the_first() -> None:
    latest = record()
    for count in range(1, 6):
        crashes = crash_count_of(latest, ["fetch"])
        assert crashes == CrashCount(count, ("fetch",), "2026-01-01T12:00:00Z")
        assert crashes.is_crash_loop(5) is (count == 5)
        latest = resumed(latest, crashes)


def test_a_new_result_begins_the_count_anew() -> None:
    latest = record()
    latest = resumed(latest, crash_count_of(latest, ["a"]))
    latest = attrs.evolve(latest, step_results=(StepResult("x"),))
    assert crash_count_of(latest, ["a"]).count == 1


def test_a_new_partial_state_begins_the_count_anew_and_the_same_one_does_not() -> None:
    latest = record(partial={"a": PartialState(1)})
    latest = resumed(latest, crash_count_of(latest, ["a"]))
    assert crash_count_of(latest, ["a"]).count == 2
    assert crash_count_of(attrs.evolve(latest, partial={"a": PartialState(1)}), ["a"]).count == 2
    assert crash_count_of(attrs.evolve(latest, partial={"a": PartialState(2)}), ["a"]).count == 1


def test_a_death_at_another_step_begins_the_count_anew() -> None:
    latest = record()
    latest = resumed(latest, crash_count_of(latest, ["a"]))
    assert crash_count_of(latest, ["b"]) == CrashCount(1, ("b",), "2026-01-01T12:00:01Z")


def test_of_steps_that_ran_beside_each_other_those_are_suspected_that_ran_each_time() -> None:
    latest = record()
    latest = resumed(latest, crash_count_of(latest, ["m/[0]", "m/[1]", "m/[2]"]))
    crashes = crash_count_of(latest, ["m/[2]", "m/[1]", "m/[5]"])
    assert (crashes.count, crashes.paths, crashes.path) == (2, ("m/[2]", "m/[1]"), "m/[1]")


def test_a_step_that_has_ended_is_not_suspected() -> None:
    assert crash_count_of(record(1), ["done[0]", "next"]).paths == ("next",)


def test_marked_steps_count_where_the_process_left_no_word() -> None:
    latest = record(in_flight=("pay",))
    latest = resumed(latest, crash_count_of(latest, []))
    assert crash_count_of(latest, []) == CrashCount(2, ("pay",), "2026-01-01T12:00:00Z")


def test_where_nobody_knows_the_step_saving_nothing_new_is_enough() -> None:
    latest = record()
    latest = resumed(latest, crash_count_of(latest, []))
    assert (crash_count_of(latest, []).count, crash_count_of(latest, []).path) == (2, "")


ENDED = [each for each in Status if each not in (Status.RUNNING, Status.CRASHED)]


@pytest.mark.parametrize("status", ENDED, ids=str)
def test_an_attempt_that_said_how_it_ended_did_not_die(status: Status) -> None:
    latest = record()
    latest = resumed(latest, crash_count_of(latest, ["a"]), status=status)
    assert crash_count_of(latest, ["a"]) == CrashCount()
    assert "deaths" not in resumed(latest, crash_count_of(latest, ["a"])).metadata


def test_attempts_that_died_before_they_saved_anything_count_too() -> None:
    assert crash_count_of(record(), ["a"], silent=2).count == 3
    assert crash_count_of(record(status="failed"), [], silent=4).count == 4


def test_the_limit_is_what_is_asked_for_or_what_was_recorded_or_the_default() -> None:
    assert limit_of({}) == 5
    assert limit_of({}, default=9) == 9
    assert limit_of({"limits": {"max_crashes": 2}}, default=9) == 2
    assert limit_of({"limits": {"max_crashes": 2}}, 0) == 0
    assert not CrashCount(100).is_crash_loop(0)


@given(st.lists(st.sampled_from(["same", "other", "result", "state"]), max_size=12))
def test_the_count_is_the_number_of_deaths_since_something_last_moved(history: list[str]) -> None:
    latest, expected, step = record(), 0, "a"
    for number, what in enumerate(history):
        if what == "other":
            step = f"step {number}"
        elif what == "result":
            latest = attrs.evolve(latest, step_results=(*latest.step_results, StepResult(f"r{number}")))
        elif what == "state":
            latest = attrs.evolve(latest, partial={"a": PartialState(number)})
        expected = expected + 1 if what == "same" else 1
        crashes = crash_count_of(latest, [step])
        assert crashes.count == expected
        latest = resumed(latest, crashes)
