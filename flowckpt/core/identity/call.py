"""The identity of a call: its function, the code of the function, its arguments, its version tag.

The arguments are recorded by parameter, in the form of `values`. What the function itself holds is recorded in the same
way, beside the arguments: the object of a bound method, the variables of a closure, and the fields of a callable object.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import FunctionType, MappingProxyType, MethodType
from typing import Any
from weakref import ref

import attrs

from flowckpt.core.codec import Json
from flowckpt.core.codec.annotations import is_structured, return_annotation
from flowckpt.core.codec.tags import dumps
from flowckpt.core.dsl.step import Action, PythonAction, function_name
from flowckpt.core.identity.fingerprint import step_fingerprint
from flowckpt.core.identity.secrets import KnownSecrets
from flowckpt.core.identity.values import (
    CONTAINERS,
    NONE,
    UNKNOWN,
    IncomparableError,
    ValueTree,
    changes_container,
    digest_held,
    digest_value,
    free_name,
    held_values,
    is_held,
    value_part,
)
from flowckpt.core.system.declared import short_repr, type_name
from flowckpt.core.system.functions import PerFunction, cached_per_function
from flowckpt.core.system.secret import Secret
from flowckpt.errors import EncodingError

_LIMIT = 1 << 63
_LOWEST = -_LIMIT
_PLAIN = frozenset({int, float, bool, type(None)})
_PATH = type(Path())
HIDDEN = "***"
_MOST_SHOWN = 60

# Compiled at their first use (`re` caches them): 3 ms that a resume does not need.
_TELLING_NAME = (
    r"(?i)authoriz|authoris|(?:\b|_)auth(?:\b|_)|token|secret|passw|pwd|passphrase|credential|cookie|session|bearer|jwt|"
    r"(?:\b|_|-)(?:pin|dsn)(?:\b|_|-)|(?:\b|_|-|api|access|private)keys?(?:\b|_|-)"
)
_TELLING_TEXT = r"(?i)(?:passw\w*|pwd|secret|token|key)\W{0,3}[=:]|bearer\s|authorization"
_USER_IN_URL = r"(?s)://.*@"
_END_OF_URL = r"(://[^\s?#]*)[?#]\S*"


def digest_arguments(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], secrets: KnownSecrets = NONE
) -> dict[str, Json]:
    """Return the recorded form of the arguments of a call, by parameter, and of what its function holds.

    It never raises, and keeps no references.

    Args:
        function: the called function.
        args: the positional arguments.
        kwargs: the keyword arguments; defaults are code, and not applied.
        secrets: the secrets of the run; secrets among the arguments are added.
    """
    named = {name: digest_value(value, secrets) for name, value in _name_arguments(function, args, kwargs)}
    for name, value in held_values(function).items():
        form = digest_held(function, value, secrets)
        if form != UNKNOWN or not hasattr(function, "__wrapped__"):  # what a decorator keeps for itself does not count
            named[free_name(name, named)] = form
    return named


def digest_positional(names: Sequence[str], args: Sequence[Any], secrets: KnownSecrets) -> dict[str, Json]:
    """Like `digest_arguments`, for a plain function that is called only with positional arguments for its parameters.

    Args:
        names: its positional parameters; see `positional_parameters`.
        args: the arguments.
        secrets: as there.
    """
    kept = {}
    for name, value in zip(names, args, strict=False):
        # Usually a number; a call would take 0.1 µs.
        if type(value) is int and _LOWEST <= value < _LIMIT and not secrets.is_any:
            kept[name] = value
        else:
            kept[name] = digest_value(value, secrets)
    return kept


def positional_parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of the positional parameters of a plain function.

    Args:
        function: the function.
    """
    return _signature(function)[0]


def format_arguments(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], secrets: KnownSecrets = NONE
) -> dict[str, str]:
    """Return the arguments of a call for display: plain values only, at most 60 characters each, secrets hidden.

    Args:
        function: the called function.
        args: the positional arguments.
        kwargs: the keyword arguments.
        secrets: the secrets of the run.
    """
    named = dict(_name_arguments(function, args, kwargs))
    for name, value in held_values(function).items():
        named[free_name(name, named)] = value
    return {name: text for name, value in named.items() if (text := _format_argument(name, value, secrets))}


def argument_differences(
    recorded: Mapping[str, Json], now: Mapping[str, Json], shown: Mapping[str, str] | None = None
) -> list[str]:
    """Return a line for each changed argument; arguments that cannot be compared count as unchanged.

    Args:
        recorded: the recorded arguments.
        now: the present arguments in recorded form.
        shown: the texts of the present values, by parameter, as far as they may be shown.
    """
    lines = []
    for name in [*now, *(name for name in recorded if name not in now)]:
        old, new = value_part(recorded.get(name, UNKNOWN)), value_part(now.get(name, UNKNOWN))
        if name not in recorded and new != UNKNOWN:
            lines.append(f"{name}: was not passed before")
        elif name not in now and old != UNKNOWN:
            lines.append(f"{name}: is no longer passed")
        elif UNKNOWN not in (old, new) and (type(old), repr(old)) != (type(new), repr(new)):
            lines.append(f"{name}: {_describe_change(name, old, new, shown or {})}")
    return lines


def _describe_change(name: str, old: Json, new: Json, shown: Mapping[str, str]) -> str:
    is_secret = _is_secret_name(name)
    was = "" if type(old) is str or is_secret else repr(old)
    now = shown.get(name, "") if type(new) is str or is_secret else repr(new)
    if was and now:
        return f"{was} → {now}"
    return "changed" + (f", was {was}" if was else "") + (f", now {now}" if now and now != HIDDEN else "")


MOST_RECORDED = 64 * 1024
"""The largest JSON size of recorded arguments, for steps with `.record_arguments()`."""


def argument_values(action: Action, path: str, secrets: KnownSecrets) -> dict[str, Json]:
    """Return the arguments of a call as JSON, by parameter, without secrets; of a command, its words and its directory.

    Args:
        action: the call.
        path: its step, for errors.
        secrets: the secrets of the run; secrets among the arguments are added.

    Raises:
        EncodingError: JSON cannot hold an argument, or they take too many bytes.
    """
    found: dict[str, Json] = {}
    given = (
        {"argv": action.identity["argv"], "cwd": action.identity["cwd"]} if action.is_command else action.arguments()
    )
    for name, value in given.items():
        try:
            found[name] = ValueTree(secrets, opens_objects=False).of(value)
        except (EncodingError, IncomparableError) as error:
            raise EncodingError(
                f"{path}: argument {name!r} cannot be recorded: it is {short_repr(value)} ({type_name(type(value))})",
                place=f"{path}: argument {name}",
                type_name=type_name(type(value)),
                remedy="Remove .record_arguments(), or pass values that JSON supports, such as a path or a key.",
            ) from error
    found = secrets.redact_tree(found)
    sizes = {name: len(dumps(value).encode()) for name, value in found.items()}
    if (size := sum(sizes.values())) > MOST_RECORDED:
        largest = max(sizes, key=sizes.__getitem__)
        raise EncodingError(
            f"{path}: the arguments take {size:,} bytes as JSON, of which {largest!r} takes {sizes[largest]:,}; at most "
            f"{MOST_RECORDED:,} are recorded",
            place=f"{path}: argument {largest}",
            type_name=type_name(type(given[largest])),
            remedy="Remove .record_arguments(), or pass a path or a key instead of the data.",
        )
    return found


# --- names -----------------------------------------------------------------------------------------------------------


def _name_arguments(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    """Return the arguments with the names of their parameters."""
    is_plain = type(function) is FunctionType
    if not is_plain:
        function, args, kwargs = _flatten_partial(function, args, kwargs)
    if not args:
        return kwargs.items()
    names, star = _signature(function) if is_plain else _parameters(function)
    if len(args) > len(names):
        more = range(len(args) - len(names))
        names = (*names, *(f"{star}[{index}]" if star else str(len(names) + index) for index in more))
    if not kwargs:
        return zip(names, args, strict=False)
    named = dict(zip(names, args, strict=False))
    for name, value in kwargs.items():
        named[free_name(name, named)] = value  # def f(x, /, **more), called as f(1, x=2)
    return named.items()


def _flatten_partial(
    function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Any, Sequence[Any], Mapping[str, Any]]:
    """Return the function and the arguments that a partial calls."""
    later = getattr(functools, "Placeholder", _PLAIN)  # Python 3.14: an argument that the call fills in
    while issubclass(type(function), functools.partial):
        given = iter(args)
        args = [next(given, later) if arg is later else arg for arg in function.args]
        args += given
        kwargs = {**function.keywords, **kwargs}
        function = function.func
    return function, args, kwargs


def _parameters(function: Any) -> tuple[tuple[str, ...], str]:
    """Return the names of the positional parameters, and that of the one with the star."""
    try:
        if isinstance(function, FunctionType | type):
            return _signature(function)
        if not isinstance(function, MethodType):
            call = getattr(type(function), "__call__", None)
            if type(call) is not FunctionType or hasattr(function, "__wrapped__"):
                return _signature(function)
            function = call.__get__(function)
        names, star = _parameters(function.__func__)
        return names[1:], star
    except Exception:  # the object's own code failed
        return (), ""


@cached_per_function
def _signature(function: Callable[..., Any]) -> tuple[tuple[str, ...], str]:
    try:
        plain = function if isinstance(function, type) else inspect.unwrap(function)
        if type(plain) is FunctionType:  # not by its signature, which looks at annotations too
            code = plain.__code__
            names, count = code.co_varnames, code.co_argcount
            return names[:count], names[count + code.co_kwonlyargcount] if code.co_flags & inspect.CO_VARARGS else ""
        parameters = inspect.signature(plain).parameters.values()
    except Exception:  # a builtin that has none
        return (), ""
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    star = [each.name for each in parameters if each.kind is inspect.Parameter.VAR_POSITIONAL]
    return tuple(each.name for each in parameters if each.kind in positional), star[0] if star else ""


# --- for people ------------------------------------------------------------------------------------------------------


def _format_argument(name: str, value: Any, secrets: KnownSecrets) -> str:
    kind = type(value)
    if kind is Secret or secrets.is_number(value):
        return HIDDEN
    if kind is not str and kind is not _PATH and kind not in _PLAIN:
        return ""
    if _is_secret_name(name) and value is not None and kind is not bool:
        return HIDDEN
    if kind in _PLAIN:
        return "" if isinstance(value, int) and abs(value) >= _LIMIT else repr(value)
    text = secrets.redact(str(value))[:4096]
    text = re.sub(_END_OF_URL, r"\1?…", re.sub(_USER_IN_URL, f"://{HIDDEN}@", text))
    if re.search(_TELLING_TEXT, text):
        return HIDDEN
    shown = repr(text)
    return shown if len(shown) <= _MOST_SHOWN else f"{shown[: _MOST_SHOWN - 1]}…"


@functools.lru_cache(maxsize=1024)
def _is_secret_name(name: str) -> bool:
    return re.search(_TELLING_NAME, name) is not None


@attrs.define(eq=False, repr=False)
class CallIdentity:
    """The identity of a call in recorded form, for comparison with a later call.

    Attributes:
        function: `module:qualname`; empty for an action without a function.
        fingerprint: the identity of its code; empty if there is none or it is unknown.
        arguments: the recorded form of its arguments, by parameter.
        version: the version tag of the step, or None.
        returns_plain: whether its output is built of the closed set alone, as far as the annotation of a plain function
            says; no part of the identity.
        holds_values: whether its function holds values, which the call may change.
    """

    function: str = ""
    fingerprint: str = ""
    arguments: Mapping[str, Any] = MappingProxyType({})
    version: str | None = None
    returns_plain: bool = False
    holds_values: bool = False


@attrs.frozen(eq=False, repr=False)
class FunctionInfo:
    """The facts about a plain function.

    Attributes:
        name: `module:qualname`.
        fingerprint: the identity of its code; empty if that cannot be known.
        parameters: the names of its positional parameters.
        is_plain: whether its output is built of the closed set alone, as far as its annotation says.
        is_only_code: whether it holds no values in a closure.
    """

    name: str
    fingerprint: str
    parameters: tuple[str, ...]
    is_plain: bool
    is_only_code: bool


def _describe_function(function: Callable[..., Any]) -> FunctionInfo:
    return FunctionInfo(
        function_name(function),
        step_fingerprint(function),
        positional_parameters(function),
        not is_structured(return_annotation(function)),
        not held_values(function),
    )


_INFO = PerFunction(_describe_function)


def function_info(action: Action) -> FunctionInfo | None:
    """Return the facts about the function of an action; None for a function that is more than its code.

    They are looked up once per function: reading four caches at each call would take 1 µs.
    """
    if type(action) is PythonAction and type(action.function) is FunctionType:
        info = _INFO[ref(action.function)]
        return info if info.is_only_code else None
    return None


def identify(action: Action, secrets: KnownSecrets = NONE, version: str | None = None) -> CallIdentity:
    """Return the identity of the call of an action.

    Args:
        action: the action.
        secrets: the secrets of the run; secrets among the arguments are added.
        version: the version tag of its step.
    """
    if type(action) is not PythonAction:
        return CallIdentity(action.function_name, "", _arguments(action, secrets), version)
    function, args, kwargs = action.function, action.args, action.kwargs
    info = function_info(action)
    if info is None:
        arguments = digest_arguments(function, args, kwargs, secrets)
        return CallIdentity(action.function_name, step_fingerprint(function), arguments, version, holds_values=True)
    if not kwargs and len(args) <= len(info.parameters):
        arguments = digest_positional(info.parameters, args, secrets)
    else:
        arguments = digest_arguments(function, args, kwargs, secrets)
    return CallIdentity(info.name, info.fingerprint, arguments, version, info.is_plain)


def forget_changed_values(action: PythonAction, before: CallIdentity, secrets: KnownSecrets) -> list[str]:
    """Return the names of what the function of an ended call holds and has changed, and remove their forms from it.

    Such a value differs at each call, so its form before the call tells nothing about the result. The same holds for a
    list, dictionary or set: other steps share it, and usually collect something in it.

    Args:
        action: the call.
        before: its identity before the call.
        secrets: the secrets of the run.
    """
    function, changed, unknown = action.function, list[str](), list[str]()
    forms = [name for name, form in before.arguments.items() if is_held(form) or form == UNKNOWN]
    for name, value in held_values(function).items():
        known = next((each for each in forms if each.lstrip("*") == name), None)
        if known is None:
            continue
        if changes_container(function) or (
            is_held(form := before.arguments[known]) and digest_held(function, value, secrets) != form
        ):
            changed.append(name)
        if name in changed or isinstance(value, CONTAINERS):
            unknown.append(known)
    if unknown:
        before.arguments = {**before.arguments, **dict.fromkeys(unknown, UNKNOWN)}
    return changed


def _arguments(action: Action, secrets: KnownSecrets) -> dict[str, Any]:
    if action.is_command or action.is_waiting:
        named = action.identity
    elif action.step_type == "start":
        started: Any = action
        named = started.inputs  # as passed: the new run applies its defaults itself
    else:
        named = action.arguments()
    return {name: digest_value(value, secrets) for name, value in named.items()}
