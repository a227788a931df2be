"""Which checkpoints a retention lets go: the rule by itself."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flowckpt import Retention
from flowckpt.core.records import Reason
from flowckpt.core.records.listing import CheckpointRef
from flowckpt.core.system.numbers import age_of
from flowckpt.errors import SettingError
from flowckpt.maintenance.retention import Resting, removable

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def ref(sequence, *, hours=0, size=100, verified=None, name=None):
    saved_at = NOON - timedelta(hours=hours)
    return CheckpointRef(
        "run", name or f"c{sequence}", sequence, 1, Reason.STEP, saved_at, sequence, size=size, verified=verified
    )


def gone(references, *, pinned=(), **limits):
    return [each.sequence for each in removable(references, Retention(**limits), NOON, pinned=pinned)]


def test_without_a_limit_everything_stays():
    assert gone([ref(1, hours=1000), ref(2)]) == []


def test_the_last_ones_stay_by_sequence_whatever_the_clock_said():
    assert gone([ref(3, hours=9), ref(1), ref(4, hours=99), ref(2)], keep_last=2) == [1, 2]


def test_what_is_older_than_the_limit_goes():
    assert gone([ref(1, hours=30), ref(2, hours=24), ref(3)], max_age="24h") == [1]


def test_the_oldest_go_until_the_rest_fits():
    assert gone([ref(1), ref(2), ref(3), ref(4, size=5)], max_bytes=210) == [1]
    assert gone([ref(1, size=1), ref(2, size=300), ref(3)], max_bytes=210) == [1, 2]


def test_each_limit_is_one_by_itself():
    references = [ref(n, hours=10 - n) for n in range(1, 6)]
    assert gone(references, keep_last=4, max_age="6h") == [1, 2, 3]


def test_the_newest_stays_though_it_is_too_old_and_too_large():
    assert gone([ref(1), ref(2, hours=999, size=10**9)], keep_last=1, max_age="1h", max_bytes=1) == [1]


def test_the_newest_verified_one_stays():
    references = [ref(1, verified=True), ref(2, verified=True), ref(3, verified=False), ref(4), ref(5)]
    assert gone(references, keep_last=1) == [1, 3, 4]


def test_pinned_ones_stay_by_sequence_and_by_id():
    references = [ref(1), ref(2), ref(3, name="best"), ref(4)]
    assert gone(references, keep_last=1, pinned={2}) == [1, 3]
    references = [ref(1), ref(2, name="best"), ref(3, name="best"), ref(4)]
    assert [each.sequence for each in removable(references, Retention(keep_last=1, pinned=["best"]), NOON)] == [1]


@pytest.mark.parametrize(
    "limits",
    [
        *({"keep_last": value} for value in (0, -1, 1.5, True, "3")),
        *({"max_bytes": value} for value in (0, -5, "1MB")),
        *({"max_age": value} for value in ("", "5", "soon", -1, "1x", float("nan"), timedelta(-1), True)),
        *({"pinned": value} for value in ("best", [1])),
        *({"on_success": value} for value in ("", "delete", None)),
    ],
    ids=repr,
)
def test_what_cannot_be_is_refused_with_the_name_of_the_setting(limits):
    """Above all `keep_last=0`, which would remove what was just saved."""
    with pytest.raises(SettingError) as caught:
        Retention(**limits)
    assert caught.value.setting == next(iter(limits))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("45m", 2700), ("45min", 2700), ("1d12h", 129_600), ("1h 30m", 5400), ("2W", 1_209_600), (7, 7)],
)
def test_an_age_is_read_with_its_units(text, seconds):
    assert age_of(text) == timedelta(seconds=seconds)


REFERENCES = st.lists(
    st.tuples(st.integers(0, 100), st.integers(0, 500), st.sampled_from([None, True, False])), min_size=1, max_size=12
).map(lambda rows: [ref(n, hours=h, size=s, verified=v) for n, (h, s, v) in enumerate(rows, 1)])
LIMITS = st.fixed_dictionaries(
    {},
    optional={
        "keep_last": st.integers(1, 10),
        "max_age": st.integers(0, 90).map(lambda hours: timedelta(hours=hours)),
        "max_bytes": st.integers(1, 3000),
    },
)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(REFERENCES, LIMITS, st.sets(st.integers(1, 12), max_size=4))
def test_whatever_the_limits_what_a_resume_needs_stays_and_doing_it_again_changes_nothing(references, limits, pinned):
    retention = Retention(**limits)
    removed = {each.sequence for each in removable(references, retention, NOON, pinned=pinned)}
    left = [each for each in references if each.sequence not in removed]
    assert len(references) in {each.sequence for each in left}
    verified = [each.sequence for each in references if each.verified]
    assert not verified or verified[-1] not in removed
    assert not removed & pinned
    assert removable(left, retention, NOON, pinned=pinned) == []
    if "keep_last" in limits:
        assert len(left) <= limits["keep_last"] + 1 + len(pinned)


def both(references, *, pinned=(), **limits):
    found = removable(references, Retention(**limits), NOON, pinned=pinned, must_pass_all=True)
    return [each.sequence for each in found]


def test_where_all_must_be_passed_a_checkpoint_goes_only_if_it_passes_all():
    references = [ref(n, hours=10 - n) for n in range(1, 6)]
    assert both(references, keep_last=4, max_age="6h") == [1]
    assert both(references, keep_last=2, max_age="8h30m") == [1]
    assert both(references, keep_last=1, max_bytes=250) == [1, 2, 3]
    assert both(references, keep_last=1) == [1, 2, 3, 4]
    assert both(references) == []


def test_what_the_state_of_a_run_rests_on_stays_and_only_what_counts_is_counted():
    references = [ref(n) for n in range(1, 9)]
    resting = Resting(frozenset({2, 3}), frozenset({2, 4, 6}))
    found = removable(references, Retention(keep_last=2), NOON, resting=resting)
    assert [each.sequence for each in found] == [1]
    found = removable(references, Retention(keep_last=1), NOON, resting=resting)
    assert [each.sequence for each in found] == [1, 4, 5]
    found = removable(references, Retention(max_age="0s", max_bytes=1), NOON, resting=resting)
    assert {each.sequence for each in found} == {1, 4, 5, 6, 7}


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(REFERENCES, LIMITS, st.sets(st.integers(1, 12), max_size=4), st.booleans())
def test_what_must_pass_all_is_among_what_passes_any_and_what_is_needed_stays(references, limits, needed, has_pins):
    retention, resting = Retention(**limits), Resting(frozenset(needed))
    any_of, all_of = (
        {
            each.sequence
            for each in removable(
                references, retention, NOON, resting=resting, pinned=needed if has_pins else (), must_pass_all=how
            )
        }
        for how in (False, True)
    )
    assert all_of <= any_of
    assert not any_of & needed
    if len(limits) == 1:
        assert all_of == any_of
