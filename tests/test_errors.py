"""Every error: in one tree, picklable with all it carries, and saying what it is about."""

from __future__ import annotations

import copy
import inspect
import pickle
import shlex
import typing
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowckpt import errors
from flowckpt.core.system.declared import shell_word, type_name
from flowckpt.errors import FlowckptError, StepFailedError

CLASSES = [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, BaseException)]
NOT_IN_THE_MESSAGE = {
    "is_left",
    "repeats_effect",  # of RunUndoneError, which says what it means
    "remedy",
    "error_bases",
    "traceback",
    "is_outcome_unknown",
    "supported",
    "causes",
    "exit_code",  # the detail of WorkerDiedError says it in words
    "is_whole_store",  # it says which of two messages is written
    "was_done",  # likewise
    "is_proved",  # of StaleStepError: "is stale", or "may be stale"
    "differs",  # the detail of MirrorError says it in words
}


def argument(name, annotation, number):
    """A value that can be told from all others, of the type that a parameter asks for."""
    origin = typing.get_origin(annotation) or annotation
    match origin:
        case _ if origin is bool:
            return True
        case _ if origin is int:
            return 7000 + number
        case _ if origin is float:
            return 0.5 + number
        case _ if origin in (Mapping, dict):
            return {f"<{name} leaf>": ("old value", "new value")}
        case _ if origin in (Sequence, tuple, list):
            return (f"<{name} 1>", f"<{name} 2>")
        case _:
            return f"<{name}>"


def arguments_of(cls):
    hints = typing.get_type_hints(cls)
    parameters = list(inspect.signature(cls).parameters.values())
    return parameters, {p.name: argument(p.name, _first(hints.get(p.name, str)), n) for n, p in enumerate(parameters)}


def _first(annotation):
    """The first alternative of `X | None`."""
    arguments = typing.get_args(annotation)
    return arguments[0] if type(None) in arguments else annotation


def sample(cls, *, required_only=False):
    parameters, values = arguments_of(cls)
    chosen = [p for p in parameters if not required_only or p.default is p.empty]
    positional = [values[p.name] for p in chosen if p.kind is p.POSITIONAL_OR_KEYWORD]
    keywords = {p.name: values[p.name] for p in chosen if p.kind is p.KEYWORD_ONLY}
    return cls(*positional, **keywords)


def test_the_classes_were_found():
    assert len(CLASSES) > 20
    assert {cls.__name__ for cls in CLASSES} == set(errors.__all__)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_error_derives_from_the_root_and_is_described(cls):
    assert issubclass(cls, FlowckptError)
    assert cls.__doc__
    assert cls.__name__.endswith("Error")


@pytest.mark.parametrize("required_only", [False, True])
@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_error_survives_pickling_and_copying_with_all_it_carries(cls, required_only):
    error = sample(cls, required_only=required_only)
    error.add_note("a note")
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        found = pickle.loads(pickle.dumps(error, protocol))
        assert type(found) is cls
        assert str(found) == str(error)
        assert vars(found) == vars(error)
        assert found.args == error.args
        assert found.__notes__ == ["a note"]
    assert vars(copy.copy(error)) == vars(error)


@pytest.mark.parametrize("odd", ["my run's", "odd id", "$(x)", "#1"])
def test_every_command_that_an_error_says_has_the_id_of_the_run_as_one_word(odd):
    said = 0
    for cls in CLASSES:
        parameters, values = arguments_of(cls)
        if "workflow_id" in values:
            values.update(dict.fromkeys({"workflow_id", "checkpoint_id"} & values.keys(), odd))
            given = [p for p in parameters if p.name != "remedy" or p.default is p.empty]
            remedy = cls(
                *[values[p.name] for p in given if p.kind is p.POSITIONAL_OR_KEYWORD],
                **{p.name: values[p.name] for p in given if p.kind is p.KEYWORD_ONLY},
            ).remedy
            said += shell_word(odd) in remedy
            assert odd not in remedy.replace(shell_word(odd), ""), cls
    assert said > 10


@given(st.text())
def test_a_word_of_the_shell_is_what_the_standard_library_makes_of_it(text):
    assert shell_word(text) == shlex.quote(text)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_error_carries_its_arguments_as_attributes(cls):
    _, values = arguments_of(cls)
    error = sample(cls)
    for name, value in values.items():
        if name in ("message", "detail", "what") and not hasattr(error, name):
            continue
        found = getattr(error, name)
        assert (tuple(found) if isinstance(value, tuple) else value in found if name == "message" else found) in (
            value,
            True,
        ), name


def needles(value):
    """What must be found in a message that shows a value."""
    if isinstance(value, Mapping):
        return [text for leaf, pair in value.items() for text in (leaf, *pair)]
    if isinstance(value, tuple):
        return list(value)
    return [f"{value:g}" if isinstance(value, float) else str(value)]


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_error_says_what_it_is_about(cls):
    parameters, values = arguments_of(cls)
    error = sample(cls)
    writes_its_own = "message" not in values
    for parameter in parameters:
        is_shown = parameter.name in ("message", "where") or writes_its_own
        if is_shown and parameter.name not in NOT_IN_THE_MESSAGE:
            for needle in needles(values[parameter.name]):
                assert needle in str(error), parameter.name
    assert error.message in str(error)
    assert str(error).endswith(error.remedy)
    assert "\n" not in str(error)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_attribute_is_described(cls):
    own = set(vars(sample(cls))) - {"message", "remedy"}
    described = "".join(base.__doc__ or "" for base in cls.__mro__ if issubclass(base, FlowckptError))
    missing = {name for name in own if f"{name}: " not in described}
    assert not missing


def test_an_error_ends_with_its_remedy_and_has_none_to_end_with_otherwise():
    assert str(FlowckptError("it broke", remedy="Mend it.")) == "it broke. Mend it."
    assert str(FlowckptError("it broke")) == "it broke"


def test_a_failed_step_can_be_asked_for_the_type_of_its_failure_also_after_pickling():
    class Mine(KeyError):
        pass

    error = StepFailedError(
        "fetch",
        error_type=type_name(Mine),
        error_message="'x'",
        error_bases=[type_name(cls) for cls in Mine.__mro__],
        tries=3,
    )
    for each in (error, pickle.loads(pickle.dumps(error))):
        assert each.failed_with(Mine)
        assert each.failed_with(ValueError, LookupError)
        assert not each.failed_with(ValueError, OSError)
        assert not each.failed_with()
        assert "after 3 tries" in str(each)


def test_a_timeout_is_also_pythons_own():
    assert issubclass(errors.StepTimeoutError, TimeoutError)
