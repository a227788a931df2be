"""The identity of a call: its function, the code of the function, its arguments, its version tag.

The recorded arguments allow a later comparison, but contain no text. By parameter: a number, a bool or None directly;
anything else as a digest of 128 bits; `"?"` for a value that cannot be compared (a connection, a model). Text is always
digested, so it is never mistaken for a digest, and a password is never recorded.

The digest covers `inputs_hash.canonical` of the value's tree. A plain str or bytes may be long, and is digested
directly after a `"` or a `b`, with which the canonical form of no other value starts.

All secrets count as equal, and known secret values are removed from everything before it is digested: a short secret
could be guessed from its digest.

The tree is that of the codec. An object outside the codec's types is `{"$object": [class, fields]}`, which is never
read back, so it needs no annotation. The class is named without its module, because moved code is the same code; the
fields are those that the class compares by.
"""

from __future__ import annotations

import enum
import functools
import inspect
import math
import re
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from types import FunctionType, MappingProxyType, MethodType
from typing import Any
from weakref import ref

import attrs

from flowckpt.core.codec import Json, tags
from flowckpt.core.codec import encode as encode_leaf
from flowckpt.core.codec.annotations import is_named_tuple, is_pydantic, is_structured, return_annotation
from flowckpt.core.codec.tags import dumps
from flowckpt.core.dsl.checks import unyielded_argument_error
from flowckpt.core.dsl.step import Action, PythonAction, Step, function_name
from flowckpt.core.identity import classes
from flowckpt.core.identity.fingerprint import step_fingerprint
from flowckpt.core.identity.inputs_hash import canonical
from flowckpt.core.identity.secrets import KnownSecrets
from flowckpt.core.system import external
from flowckpt.core.system.declared import short_repr, type_name
from flowckpt.core.system.functions import PerFunction, cached_per_function
from flowckpt.core.system.secret import MARK, Secret
from flowckpt.errors import EncodingError, StepNotYieldedError

UNKNOWN = "?"
"""Stands for a value that cannot be compared."""

HIDDEN = "***"
MAX_DEPTH = 100
MAX_ITEMS = 1 << 21
"""How many items a value may have: even a short value can contain itself many times."""

_LIMIT = 1 << 63
_LOWEST = -_LIMIT
_PLAIN = frozenset({int, float, bool, type(None)})
_CONTENTS = (int, float, str, bytes, list, dict, tuple, set, frozenset)
_PATH = type(Path())
_MOST_SHOWN = 60

# Compiled at their first use (`re` caches them): 3 ms that a resume does not need.
_TELLING_NAME = (
    r"(?i)authoriz|authoris|(?:\b|_)auth(?:\b|_)|token|secret|passw|pwd|passphrase|credential|cookie|session|bearer|jwt|"
    r"(?:\b|_|-)(?:pin|dsn)(?:\b|_|-)|(?:\b|_|-|api|access|private)keys?(?:\b|_|-)"
)
_TELLING_TEXT = r"(?i)(?:passw\w*|pwd|secret|token|key)\W{0,3}[=:]|bearer\s|authorization"
_USER_IN_URL = r"(?s)://.*@"
_END_OF_URL = r"(://[^\s?#]*)[?#]\S*"


NONE = KnownSecrets()
"""The secrets of a call outside a run: only values wrapped as `Secret` are secret."""

tags.use_program_classes(classes)


def digest_arguments(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], secrets: KnownSecrets = NONE
) -> dict[str, Json]:
    """Return the recorded form of the arguments of a call, by parameter. It never raises, and keeps no references.

    Args:
        function: the called function.
        args: the positional arguments.
        kwargs: the keyword arguments; defaults are code, and not applied.
        secrets: the secrets of the run; secrets among the arguments are added.
    """
    return {name: _digest_value(value, secrets) for name, value in _name_arguments(function, args, kwargs)}


def digest_argument(value: Any) -> Json:
    """Return the recorded form of one argument."""
    return _digest_value(value, NONE)


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
            kept[name] = _digest_value(value, secrets)
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
    return {
        name: text
        for name, value in _name_arguments(function, args, kwargs)
        if (text := _format_argument(name, value, secrets))
    }


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
        old, new = recorded.get(name, UNKNOWN), now.get(name, UNKNOWN)
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
            found[name] = _Tree(secrets).of(value, 0)
        except (EncodingError, _IncomparableError) as error:
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
        free = name
        while free in named:  # def f(x, /, **more), called as f(1, x=2)
            free = f"**{free}"
        named[free] = value
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


# --- values ----------------------------------------------------------------------------------------------------------


def _digest_value(value: Any, secrets: KnownSecrets) -> Json:
    kind = type(value)
    if secrets.is_any and (kind is int or kind is float) and secrets.is_number(value):
        value = Secret(value)
        kind = Secret
    if kind is int:
        if _LOWEST <= value < _LIMIT:
            return value
    elif value is None or kind is bool or (kind is float and math.isfinite(value)):
        return value
    try:
        if kind is str:
            value = secrets.redact(value) if secrets.is_any else value
            digest = sha256(b'"')
            digest.update(value.encode("utf-8", "surrogatepass"))
        elif kind is bytes and not secrets.is_any:
            digest = sha256(b"b")
            digest.update(value)
        elif kind is bytes:
            digest = sha256(b"b")
            digest.update(secrets.redact(value.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape"))
        else:
            tree = _Tree(secrets).of(value, 0)
            digest = sha256(canonical(secrets.redact_tree(tree) if secrets.is_any else tree))
    except StepNotYieldedError:
        raise
    except Exception:  # the value's own code failed; the step must still run
        return UNKNOWN
    return urlsafe_b64encode(digest.digest()[:16])[:22].decode()


class _IncomparableError(Exception):
    """A value has too little information to be compared."""


class _Tree:
    """Builds the tree of one value: like `codec.encode`, but with objects as their fields."""

    def __init__(self, secrets: KnownSecrets = NONE) -> None:
        self._left = MAX_ITEMS
        self._secrets = secrets

    def of(self, value: Any, depth: int) -> Json:  # noqa: PLR0911 - one return for each kind of value
        kind = type(value)
        if kind is bool or value is None or (kind is int and _LOWEST <= value < _LIMIT):
            return value
        if kind is str and value.isascii():
            return value
        if kind is list or kind is tuple or kind is set or kind is frozenset:
            items = self._all(value, depth)
            if kind is list:
                return items
            return {f"${kind.__name__}": items if kind is tuple else sorted(items, key=canonical)}
        if kind is dict:
            keys = self._all(value, depth)
            values = self._all(value.values(), depth)
            if all(type(key) is str and key[:1] != "$" for key in keys):
                return dict(zip(keys, values, strict=True))
            return {"$dict": [list(pair) for pair in zip(keys, values, strict=True)]}
        if kind is Secret:
            if not value.is_absent and self._secrets is not NONE:
                self._secrets.learn(value)
            return dict(MARK)
        if kind is Step:
            raise unyielded_argument_error("", value)
        fields = _fields(value, kind)
        if fields is None:
            return encode_leaf(value)
        return {"$object": [kind.__qualname__, {name: self._all([item], depth)[0] for name, item in fields}]}

    def _all(self, values: Iterable[Any], depth: int) -> list[Json]:
        if depth >= MAX_DEPTH:
            raise _IncomparableError
        made = [self.of(value, depth + 1) for value in values]
        self._left -= len(made)
        if self._left < 0:
            raise _IncomparableError
        return made


def _fields(value: Any, kind: type) -> Iterator[tuple[str, Any]] | None:
    """Return the fields by which an object is compared; None if it is not compared by fields."""
    if issubclass(kind, enum.Enum):
        return iter([("name", value.name), ("value", value.value)])
    if is_named_tuple(kind):
        return zip(kind._fields, tuple.__iter__(value), strict=True)  # type: ignore[attr-defined]
    if is_pydantic(kind):
        names = [*kind.model_fields]  # type: ignore[attr-defined]
        extra = value.__pydantic_extra__ or {}
        return iter([*((name, value.__dict__[name]) for name in names), *((f"**{n}", extra[n]) for n in extra)])
    if attrs.has(kind):
        names = [field.name for field in attrs.fields(kind)]
        compared = [field.name for field in attrs.fields(kind) if field.eq]
        is_own = "__attrs_attrs__" in vars(kind)
    elif external.dataclasses.is_dataclass(kind):
        names = [field.name for field in external.dataclasses.fields(kind)]
        compared = [field.name for field in external.dataclasses.fields(kind) if field.compare]
        is_own = "__dataclass_fields__" in vars(kind)
    else:
        return None
    if isinstance(value, _CONTENTS) or not (is_own or getattr(value, "__dict__", {}).keys() <= {*names}):
        raise _IncomparableError  # a plain subclass, or a subclass of list: it contains more than its fields
    return ((name, getattr(value, name)) for name in compared)


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
    """

    function: str = ""
    fingerprint: str = ""
    arguments: Mapping[str, Any] = MappingProxyType({})
    version: str | None = None
    returns_plain: bool = False


@attrs.frozen(eq=False, repr=False)
class FunctionInfo:
    """The facts about a plain function.

    Attributes:
        name: `module:qualname`.
        fingerprint: the identity of its code; empty if that cannot be known.
        parameters: the names of its positional parameters.
        is_plain: whether its output is built of the closed set alone, as far as its annotation says.
    """

    name: str
    fingerprint: str
    parameters: tuple[str, ...]
    is_plain: bool


def _describe_function(function: Callable[..., Any]) -> FunctionInfo:
    return FunctionInfo(
        function_name(function),
        step_fingerprint(function),
        positional_parameters(function),
        not is_structured(return_annotation(function)),
    )


_INFO = PerFunction(_describe_function)


def function_info(action: Action) -> FunctionInfo | None:
    """Return the facts about the function of an action; None for a method, a partial or a callable object.

    They are looked up once per function: reading four caches at each call would take 1 µs.
    """
    if type(action) is PythonAction and type(action.function) is FunctionType:
        return _INFO[ref(action.function)]
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
    if type(function) is not FunctionType:
        arguments = digest_arguments(function, args, kwargs, secrets)
        return CallIdentity(action.function_name, step_fingerprint(function), arguments, version)
    info = _INFO[ref(function)]
    if not kwargs and len(args) <= len(info.parameters):
        arguments = digest_positional(info.parameters, args, secrets)
    else:
        arguments = digest_arguments(function, args, kwargs, secrets)
    return CallIdentity(info.name, info.fingerprint, arguments, version, info.is_plain)


def _arguments(action: Action, secrets: KnownSecrets) -> dict[str, Any]:
    if action.is_command or action.is_waiting:
        named = action.identity
    elif action.step_type == "start":
        started: Any = action
        named = started.inputs  # as passed: the new run applies its defaults itself
    else:
        named = action.arguments()
    return {name: _digest_value(value, secrets) for name, value in named.items()}
