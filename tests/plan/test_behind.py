"""What depends on what, told from paths alone."""

from __future__ import annotations

import pytest

from flowckpt.core.records import StepError, StepResult
from flowckpt.engine.rules.paths import group_nested, is_within, list_below, results_after, root_failures


def result(path: str, step_type: str = "python", *, failed: str | None = None) -> StepResult:
    error = None if failed is None else StepError("ValueError", "x", path=failed or path)
    return StepResult(path.rpartition("/")[2], step_type, failed is None, path=path, error=error)


@pytest.mark.parametrize(
    ("again", "behind"),
    [
        ("a", ["b/[0]", "b/[1]", "b", "c/x", "c/y", "c", "d"]),
        ("b/[0]", ["b", "c/x", "c/y", "c", "d"]),
        ("b", ["c/x", "c/y", "c", "d"]),
        ("c/x", ["c/y", "c", "d"]),
        ("c/y", ["c", "d"]),
        ("d", []),
    ],
)
def test_behind_a_step_is_what_comes_later_in_its_own_generator_and_in_those_above(
    again: str, behind: list[str]
) -> None:
    history = [result(path) for path in ("a", "b/[0]", "b/[1]", "b", "c/x", "c/y", "c", "d")]
    assert [each.path for each in results_after(history, again)] == behind


def test_a_name_that_begins_like_another_is_not_within_it() -> None:
    assert is_within("a/b", "a")
    assert is_within("a", "a")
    assert not is_within("ab", "a")
    assert not is_within("a[1]", "a")


def test_what_lies_in_what_is_told_at_any_depth() -> None:
    nested = group_nested(["m/[0]/x", "m/[0]/y", "m/[1]", "a"])
    assert nested == {"m/[0]": ["m/[0]/x", "m/[0]/y"], "m": ["m/[0]", "m/[1]"]}
    assert sorted(list_below(nested, ["m"])) == ["m/[0]", "m/[0]/x", "m/[0]/y", "m/[1]"]


def test_the_failures_behind_a_failed_fan_out_are_those_of_its_members_down_to_the_step() -> None:
    history = [
        result("m/[0]"),
        result("m/[1]/x", failed=""),
        result("m/[1]", "workflow", failed="m/[1]/x"),
        result("m/[2]", failed=""),
        result("m", "map", failed="m"),
    ]
    assert root_failures(history, "m") == ["m/[2]", "m/[1]/x"]


def test_a_failure_that_was_on_its_way_up_when_the_fan_out_was_stopped_is_one_of_them() -> None:
    history = [
        result("m/[0]", failed=""),
        result("m/[1]/n/[0]", failed=""),  # m/[1]/n, and so m/[1], were stopped before they had ended
        result("m/[2]/x", failed=""),  # likewise: the child workflow was told, and had no time to end
        result("m/[3]/x", failed=""),  # this one was handled: the child continued
        result("m/[3]/y"),
        result("m", "map", failed="m"),
    ]
    assert root_failures(history, "m") == ["m/[0]", "m/[1]/n/[0]", "m/[2]/x"]
