"""Whether a step is still the step that made a recorded result: what counts as a change, and how it is said."""

from __future__ import annotations

import enum
import json
import sys
import threading
import types
from collections.abc import Callable
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flowckpt import step
from flowckpt.core.dsl import Step
from flowckpt.core.identity.call import identify
from flowckpt.core.records import StepResult
from flowckpt.engine.rules.judge import (
    find_plain_match,
    identity_reasons,
    incomparable_reasons,
)

NUMBERS = count()


def call(a: Any = None, b: Any = None, /, *rest: Any, token: Any = None, **more: Any) -> None:
    del a, b, rest, token, more


def named(amount: Any = 0, to: Any = "") -> None:
    del amount, to


def recorded(made: Step[Any], **changes: Any) -> StepResult:
    """Record a step as a file does: what it keeps of the arguments goes through JSON."""
    action = made.action
    result = StepResult(
        made.name,
        step_type=action.step_type,
        function=action.function_name,
        fingerprint=identify(action).fingerprint,
        version=made.modifiers.version,
        arguments=json.loads(json.dumps(identify(action).arguments)),
    )
    return attrs.evolve(result, **changes)


def reasons(now: Step[Any], result: StepResult) -> list[str]:
    return [str(reason) for reason in identity_reasons(now, result)]


# --- arguments --------------------------------------------------------------------------------------------------------

VALUES = {
    "numbers": (1, True, 1.0),
    "zeros": (0, False, 0.0, -0.0),
    "nothing": (None, False, "", 0),
    "texts": ("1", 1, b"1"),
    "sequences": ([1], (1,), {1}, frozenset({1}), [[1]]),
    "numbers inside": ([1], [True], [1.0]),
    "zeros inside": ([0.0], [-0.0]),
    "mappings": ({"a": 1}, {"a": True}, {1: "a"}, {"1": "a"}),
    "not numbers": (float("inf"), float("-inf"), float("nan"), "nan"),
    "large numbers": (2**80, 2**80 + 1, float(2**80)),
    "decimals": (Decimal("1.0"), Decimal("1.00"), 1.0),
    "paths": (Path("a"), "a"),
    "lone surrogates": ("\ud800", "\ud801"),
}


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_values_that_a_program_tells_apart_are_told_apart(values: tuple[Any, ...]) -> None:
    for number, old in enumerate(values):
        for other, new in enumerate(values):
            found = identity_reasons(step("x").python(named, new), recorded(step("x").python(named, old)))
            assert [reason.kind for reason in found] == ([] if number == other else ["arguments"]), (old, new)


ONE_ARGUMENT = st.one_of(st.integers(-2, 2), st.booleans(), st.floats(-2, 2), st.none(), st.text(max_size=2))
ARGUMENTS = st.tuples(
    st.lists(ONE_ARGUMENT, max_size=3), st.dictionaries(st.sampled_from(["amount", "to"]), ONE_ARGUMENT)
)


@given(old=ARGUMENTS, new=ARGUMENTS, changes=st.sampled_from([{}, {}, {"fingerprint": "1:another"}, {"arguments": {}}]))
@example(old=([1], {}), new=([True], {}), changes={})
@example(old=([0], {}), new=([0.0], {}), changes={})
@example(old=([1], {"to": 2}), new=([1, 2], {}), changes={})
@example(old=([1, 2, 3], {}), new=([1, 2, 4], {}), changes={})
def test_what_is_the_same_at_a_glance_is_the_same_when_looked_at(old: Any, new: Any, changes: Any) -> None:
    def made(given: tuple[list[Any], dict[str, Any]]) -> Step[Any]:
        return step("x").python(named, args=given[0], kwargs=given[1])

    result = recorded(made(old), **changes)
    if find_plain_match(made(new), result):
        assert not identity_reasons(made(new), result)


def test_a_call_with_whole_numbers_is_seen_to_be_the_same_at_a_glance() -> None:
    assert find_plain_match(step("x").python(named, 1, -2), recorded(step("x").python(named, 1, -2)))
    assert find_plain_match(step("x").python(named), recorded(step("x").python(named)))
    assert not find_plain_match(step("x").python(named, 1, -2), recorded(step("x").python(named, 1, -3)))
    assert not find_plain_match(step("x").python(named, 1), recorded(step("x").python(named, 1, 2)))


MOVED = [
    (step("x").python(named, 1), step("x").python(named, 2), ["arguments: amount: 1 → 2"]),
    (step("x").python(named, 1), step("x").python(named, True), ["arguments: amount: 1 → True"]),
    (step("x").python(named, 1), step("x").python(named, 1.0), ["arguments: amount: 1 → 1.0"]),
    (step("x").python(named, 0.0), step("x").python(named, -0.0), ["arguments: amount: 0.0 → -0.0"]),
    (step("x").python(named, "a"), step("x").python(named, "b"), ["arguments: amount: changed, now 'b'"]),
    (step("x").python(named, 1), step("x").python(named, "b"), ["arguments: amount: 1 → 'b'"]),
    (step("x").python(named, 1), step("x").python(named, [1]), ["arguments: amount: changed, was 1"]),
    (step("x").python(named, [1]), step("x").python(named, [2]), ["arguments: amount: changed"]),
    (step("x").python(named, 1), step("x").python(named, 1, to="b"), ["arguments: to: was not passed before"]),
    (step("x").python(named, 1, to="b"), step("x").python(named, 1), ["arguments: to: is no longer passed"]),
    (
        step("x").python(named, amount=1, to=2),
        step("x").python(named, amount=2, to=1),
        ["arguments: amount: 1 → 2", "arguments: to: 2 → 1"],
    ),
    (
        step("x").python(named, amount=1, to=True),
        step("x").python(named, to=1, amount=True),
        ["arguments: to: True → 1", "arguments: amount: 1 → True"],
    ),
    (step("x").python(call, token="old"), step("x").python(call, token="new"), ["arguments: token: changed"]),
    (step("x").python(call, token=1234), step("x").python(call, token=4321), ["arguments: token: changed"]),
    (step("x").python(call, 1, 2, 3), step("x").python(call, 1, 2, 4), ["arguments: rest[0]: 3 → 4"]),
    (step("x").command(["ls", "a"]), step("x").command(["ls", "b"]), ["arguments: argv: changed"]),
    (step("x").command(["ls"]), step("x").command(["ls"], cwd="a"), ["arguments: cwd: changed, was None"]),
    (step("x").command(["ls"]), step("x").command(["ls"], env={"A": "1"}), ["arguments: env: changed"]),
    (step("x").command(["ls"]), step("x").command(["ls"], stdin="a"), ["arguments: stdin: changed, was None"]),
]


@pytest.mark.parametrize(("old", "new", "said"), MOVED, ids=lambda value: "" if type(value) is not list else value[0])
def test_what_moved_is_named_down_to_the_argument_and_secrets_are_not_shown(
    old: Step[Any], new: Step[Any], said: list[str]
) -> None:
    assert reasons(new, recorded(old)) == said


SAME = {
    "keywords in another order": (
        step("x").python(named, amount=1, to=2),
        step("x").python(named, to=2, amount=1),
    ),
    "a keyword instead of a place": (step("x").python(named, 1, 2), step("x").python(named, 1, to=2)),
    "args and kwargs apart": (step("x").python(named, 1, to=2), step("x").python(named, args=(1,), kwargs={"to": 2})),
    "sets": (step("x").python(named, {"a", "b", "c"}), step("x").python(named, {"c", "b", "a"})),
    "values that say nothing of themselves": (
        step("x").python(named, threading.Lock()),
        step("x").python(named, threading.Lock()),
    ),
    "modifiers": (
        step("x").python(named, 1),
        step("x").python(named, 1).retry(3).timeout(5).checkpoint("named").at_most_once(),
    ),
    "commands": (step("x").command(["ls"], env={"A": "1"}), step("x").command(("ls",), env={"A": "1"})),
}


@pytest.mark.parametrize(("old", "new"), SAME.values(), ids=SAME)
def test_what_is_written_differently_and_means_the_same_is_the_same(old: Step[Any], new: Step[Any]) -> None:
    assert reasons(new, recorded(old)) == []


@pytest.mark.parametrize(("old", "new"), [("?", 5), (5, "?"), ("?", "?"), ("?", None)])
def test_an_argument_that_cannot_be_compared_has_never_moved(old: Any, new: Any) -> None:
    now = step("x").python(named, threading.Lock() if new == "?" else new)
    result = recorded(step("x").python(named, 5), arguments={"amount": old})
    assert reasons(now, result) == []


@pytest.mark.parametrize("names", [{}, {"amount": 5, "gone": "?"}, {"gone": "?"}])
def test_an_argument_that_came_or_went_unknown_has_never_moved(names: dict[str, Any]) -> None:
    now = step("x").python(named, 5) if "amount" in names else step("x").python(named, threading.Lock())
    assert reasons(now, recorded(now, arguments=names)) == []


# --- code and version -------------------------------------------------------------------------------------------------


@pytest.fixture
def edition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Import source as the module `work`: the same name each time, another text."""

    def edition(source: str) -> Any:
        file = tmp_path / f"edition{next(NUMBERS)}.py"
        file.write_text(source)
        module = types.ModuleType("work")
        module.__file__ = str(file)
        monkeypatch.setitem(sys.modules, "work", module)
        exec(compile(source, str(file), "exec"), module.__dict__)
        return module.__dict__["load"]

    return edition


FIRST = "def load(x):\n    return helper(x)\n\ndef helper(x):\n    return x\n"
EDITS = {
    "nothing": (FIRST, False),
    "a comment and a docstring": (FIRST.replace("return helper", '"""Load."""  # it loads\n    return helper'), False),
    "formatting": (FIRST.replace("helper(x)\n\n", "helper(\n        x\n    )\n\n"), False),
    "another function of the module": (FIRST + "\ndef other():\n    return 1\n", False),
    "the body": (FIRST.replace("return helper(x)", "return helper(x) + 1"), True),
    "a default": (FIRST.replace("load(x)", "load(x, y=1)"), True),
    "a helper": (FIRST.replace("return x", "return x + 1"), True),
}


@pytest.mark.parametrize(("source", "is_edited"), EDITS.values(), ids=EDITS)
def test_an_edited_function_or_helper_is_a_change_of_code_and_a_comment_is_none(
    edition: Callable[[str], Any], source: str, is_edited: bool
) -> None:
    result = recorded(step("x").python(edition(FIRST), 1))
    found = reasons(step("x").python(edition(source), 1), result)
    said = "code: load(), or code of the project that it uses, was edited (work:load)"
    assert found == ([said] if is_edited else [])


@pytest.mark.parametrize("fingerprint", ["", "1:another normal form", "0:x", "sha256:x"])
def test_code_whose_record_cannot_be_compared_was_not_edited(fingerprint: str) -> None:
    now = step("x").python(named, 1)
    assert identify(now.action).fingerprint.startswith("2:")
    assert reasons(now, recorded(now, fingerprint=fingerprint)) == []


def test_code_that_cannot_be_known_now_was_not_edited() -> None:
    now = step("x").python(len, "abc")
    assert identify(now.action).fingerprint == ""
    assert reasons(now, recorded(now, fingerprint="1:something")) == []


VERSIONS = [
    (None, None, []),
    ("a", "a", []),
    (None, "a", ["version: recorded None, now 'a'"]),
    ("a", None, ["version: recorded 'a', now None"]),
    ("a", "b", ["version: recorded 'a', now 'b'"]),
]


@pytest.mark.parametrize(("old", "new", "said"), VERSIONS)
def test_version_tags_are_compared_for_equality_and_none_is_a_tag_of_its_own(
    old: str | None, new: str | None, said: list[str]
) -> None:
    plain = step("x").python(named, 1)
    now = plain if new is None else plain.version(new)
    assert reasons(now, recorded(plain, version=old)) == said


def test_everything_that_moved_is_said_at_once(edition: Callable[[str], Any]) -> None:
    result = recorded(step("x").python(edition(FIRST), 1).version("a"))
    now = step("x").python(edition(FIRST.replace("return x", "return -x")), 2)
    assert [reason.kind for reason in identity_reasons(now, result)] == ["version", "code", "arguments"]


def test_how_often_a_step_was_tried_is_no_part_of_what_it_is() -> None:
    now = step("x").python(named, 1).retry(5)
    assert reasons(now, recorded(now, tries=4, attempt=7, location="elsewhere.py:9")) == []


@pytest.mark.parametrize(
    ("then", "now", "names"),
    [
        (5, 5, []),
        (5, 6, []),
        (threading.Lock(), threading.Lock(), ["amount"]),
        (5, threading.Lock(), ["amount"]),
        (threading.Lock(), 5, ["amount"]),
    ],
)
def test_behind_a_rerun_what_cannot_be_compared_is_named(then: Any, now: Any, names: list[str]) -> None:
    result = recorded(step("x").python(named, then))
    found = [str(reason) for reason in incomparable_reasons(step("x").python(named, now), result)]
    assert found == [f"arguments: {name}: cannot be compared, and an earlier step runs again" for name in names]


@attrs.frozen
class Sum:
    cents: int

    def text(self) -> str:
        return str(self.cents)


class Tariff(enum.Enum):
    FULL = 1

    def text(self) -> str:
        return self.name


@pytest.mark.parametrize("other", [[Sum(2)], [Sum(1), Tariff.FULL], [Tariff.FULL], [1], [call]])
def test_another_value_with_other_code_is_another_argument_and_no_edit(other):
    result = recorded(step("x").python(named, [Sum(1)]))
    assert not identity_reasons(step("x").python(named, [Sum(1)]), result)
    assert [each.kind for each in identity_reasons(step("x").python(named, other), result)] == ["arguments"]


def test_the_order_of_the_keys_of_a_dict_counts_as_it_may_be_that_of_columns():
    result = recorded(step("x").python(named, {"b": 1, "a": {2: 0, 1: 0}}))
    assert not identity_reasons(step("x").python(named, {"b": 1, "a": {2: 0, 1: 0}}), result)
    for other in ({"a": {2: 0, 1: 0}, "b": 1}, {"b": 1, "a": {1: 0, 2: 0}}):
        assert [each.kind for each in identity_reasons(step("x").python(named, other), result)] == ["arguments"]
