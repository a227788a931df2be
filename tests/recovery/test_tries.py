"""What could not be resumed is tried again when it has moved, or after a pause that grows."""

from __future__ import annotations

from datetime import UTC, datetime

import attrs
from hypothesis import given
from hypothesis import strategies as st

from flowckpt.core.records import RunInfo, Status
from flowckpt.maintenance.recovery import DueRun, Outcome, Tries, Why

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def due(attempt: int = 1) -> DueRun:
    return DueRun(RunInfo("run", "etl", Status.CRASHED, attempt, NOON, NOON, 1, {}), Why.CRASHED)


def test_a_run_that_was_left_is_tried_again_when_it_has_moved():
    tries = Tries()
    tries.note(due(), Outcome.LEFT, 0)
    assert not tries.may_try(due(), 29)
    assert tries.may_try(due(2), 1)


def test_a_run_whose_process_died_waits_although_it_has_moved_each_time_longer():
    tries = Tries()
    for attempt, pause in enumerate((30, 60, 120, 240), 1):
        tries.note(due(attempt), Outcome.DIED, 0)
        assert not tries.may_try(due(attempt + 1), pause - 1)
        assert tries.may_try(due(attempt + 1), pause)


def test_a_run_that_is_suspended_just_as_before_is_not_resumed_in_a_loop():
    tries = Tries()
    tries.note(due(), Outcome.SUSPENDED, 0)
    assert not tries.may_try(due(), 1)


def test_what_came_to_an_end_begins_anew():
    tries = Tries()
    tries.note(due(), Outcome.DIED, 0)
    tries.note(due(), Outcome.COMPLETED, 1)
    assert tries.may_try(due(), 1)


def test_a_watcher_remembers_only_what_is_still_to_be_recovered():
    tries = Tries()
    tries.note(due(), Outcome.LEFT, 0)
    tries.keep_only(["run"])
    assert not tries.may_try(due(), 1)
    tries.keep_only([])
    assert tries.may_try(due(), 1)


@given(st.lists(st.sampled_from([Outcome.LEFT, Outcome.DIED, Outcome.SUSPENDED, Outcome.SKIPPED]), min_size=1))
def test_the_pause_never_goes_over_the_longest_and_always_ends(outcomes):
    tries = Tries(first_seconds=1, most_seconds=8)
    for outcome in outcomes:
        tries.note(due(), outcome, 0)
    assert not tries.may_try(due(), 0.5)
    assert tries.may_try(due(), 8)


def test_the_state_of_a_run_tells_when_it_was_saved():
    moved = attrs.evolve(due().info, steps=2)
    assert DueRun(moved, Why.CRASHED).state != due().state
