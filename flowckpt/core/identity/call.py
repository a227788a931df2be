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
fields are those that the class compares by, and those of any other class are what pickle would save.

An object that compares by identity (a client, a model) may hold more than its results depend on, such as the time of
its start. Its state and class count like code, and so does a function: the user decides what a change means. Their
digest begins with `~`. A state that the call itself changes tells nothing, and is recorded as `"?"`.

What the function itself holds is recorded in the same way, beside the arguments: the object of a bound method, the
variables of a closure, and the fields of a callable object.
"""

from __future__ import annotations

import contextlib
import copyreg
import enum
import functools
import inspect
import math
import re
from base64 import urlsafe_b64encode
from collections import OrderedDict, deque
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, Sequence, ValuesView
from hashlib import sha256
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, MappingProxyType, MethodType, ModuleType
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

STATE = "~"
"""The first character of the digest of a value that contains code, or the state of an object that compares by identity."""

HIDDEN = "***"
MAX_DEPTH = 100
MAX_ITEMS = 1 << 21
"""How many items a value may have: even a short value can contain itself many times. 64 bytes of an array are one."""
MAX_STATE_ITEMS = 1 << 14
"""How many items the state of an object that compares by identity may have: it is read at each call."""

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
    """Return the recorded form of the arguments of a call, by parameter, and of what its function holds.

    It never raises, and keeps no references.

    Args:
        function: the called function.
        args: the positional arguments.
        kwargs: the keyword arguments; defaults are code, and not applied.
        secrets: the secrets of the run; secrets among the arguments are added.
    """
    named = {name: _digest_value(value, secrets) for name, value in _name_arguments(function, args, kwargs)}
    for name, value in _held_values(function).items():
        form = _digest_held(function, value, secrets)
        if form != UNKNOWN or not hasattr(function, "__wrapped__"):  # what a decorator keeps for itself does not count
            named[_free_name(name, named)] = form
    return named


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
    named = dict(_name_arguments(function, args, kwargs))
    for name, value in _held_values(function).items():
        named[_free_name(name, named)] = value
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
            found[name] = _Tree(secrets, opens_objects=False).of(value, 0)
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
        named[_free_name(name, named)] = value  # def f(x, /, **more), called as f(1, x=2)
    return named.items()


def _free_name(name: str, named: Mapping[str, Any]) -> str:
    while name in named:
        name = f"**{name}"
    return name


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


# --- what a function holds ---------------------------------------------------------------------------------------------

_CODE = (FunctionType, MethodType, type, ModuleType)
_CONTAINERS = (list, dict, set, bytearray, deque)
_READ_ONLY = {*dir(tuple), *dir(frozenset), *dir(bytes), *dir(MappingProxyType)}
"""The methods of containers that change nothing: those that their immutable counterparts have, too."""


def _held_values(function: Any) -> Mapping[str, Any]:
    """Return what a function holds besides its code: its object, or the variables of its closure; usually nothing."""
    held: dict[str, Any] = {}
    with contextlib.suppress(Exception):  # the object's own code failed
        while type(function) is not FunctionType:
            if issubclass(type(function), functools.partial):
                function = function.func
            elif type(function) is MethodType:
                names, _ = _parameters(function.__func__)
                held[names[0] if names else "self"] = function.__self__
                function = function.__func__
            elif not isinstance(function, type) and hasattr(function, "__wrapped__"):  # such as `lru_cache`
                function = function.__wrapped__
            else:
                held["self"] = getattr(function, "__self__", function)
                break
        for name, cell in zip(*_closure(function), strict=True):
            with contextlib.suppress(ValueError):  # not filled yet
                held[_free_name(name, held)] = cell.cell_contents
        return {name: value for name, value in held.items() if not _is_only_code(value)}
    return {}


def _closure(function: Any) -> tuple[tuple[str, ...], tuple[Any, ...]]:
    if type(function) is not FunctionType:
        return (), ()
    return function.__code__.co_freevars, function.__closure__ or ()


def _is_only_code(value: Any) -> bool:
    """Return whether a value is part of the code's fingerprint, or always the same."""
    if type(value) is FunctionType:
        return not _held_values(value)
    if type(value) is BuiltinFunctionType:
        return _is_only_code(value.__self__)
    return isinstance(value, type | ModuleType) or not _has_content(value)


def _has_content(value: Any) -> bool:
    """Return whether an object has anything that distinguishes it from others of its class."""
    kind: Any = type(value)
    is_plain = kind.__reduce_ex__ is object.__reduce_ex__ and kind.__reduce__ is object.__reduce__
    return not is_plain or isinstance(value, _CONTENTS) or value.__getstate__() is not None


def _digest_held(function: Any, value: Any, secrets: KnownSecrets) -> Json:
    if type(value) is Step or _changes_container(function):
        return UNKNOWN
    form = _digest_value(value, secrets)
    return form if form == UNKNOWN or is_state(form) else f"{STATE}{form}"


def is_state(form: Json) -> bool:
    """Return whether an argument in recorded form counts like code: a state, or a value that the function holds."""
    return type(form) is str and form[:1] == STATE


def without_state(arguments: Mapping[str, Json]) -> dict[str, Json]:
    """Return recorded arguments for a key that must be the same in each try and process: state counts as unknown."""
    return {name: UNKNOWN if is_state(form) else form for name, form in arguments.items()}


def _changes_container(function: Any) -> bool:
    """Return whether a function is a method such as `list.append`, called for its effect on its object."""
    return (
        type(function) is BuiltinFunctionType
        and isinstance(function.__self__, _CONTAINERS)
        and function.__name__ not in _READ_ONLY
    )


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
    is_state = False
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
            walk = _Tree(secrets)
            tree = walk.of(value, 0)
            digest = sha256(canonical(secrets.redact_tree(tree) if secrets.is_any else tree))
            is_state = walk.is_state
    except StepNotYieldedError:
        raise
    except Exception:  # the value's own code failed; the step must still run
        return UNKNOWN
    return f"{STATE * is_state}{urlsafe_b64encode(digest.digest()[:16])[:22].decode()}"


class _IncomparableError(Exception):
    """A value has too little information to be compared."""


class _Tree:
    """Builds the tree of one value: like `codec.encode`, but with objects as their fields.

    Attributes:
        is_state: whether the value has the state of an object that compares by identity.
    """

    def __init__(self, secrets: KnownSecrets = NONE, *, opens_objects: bool = True) -> None:
        self.is_state = False
        self._opens_objects = opens_objects
        self._left = MAX_ITEMS
        self._open: dict[int, int] = {}
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
            if self._open:  # an object may keep steps for later
                raise _IncomparableError
            raise unyielded_argument_error("", value)
        if kind is bytes and self._open:  # of an array, for example
            self._spend(len(value) >> 6)
            return {"$bytes": sha256(value).hexdigest()}
        if self._opens_objects and isinstance(value, _CODE):
            code = "" if isinstance(value, ModuleType) else step_fingerprint(value)
            self.is_state = self.is_state or bool(code)
            name = getattr(value, "__qualname__", value.__name__)
            return {"$object": [kind.__name__, name, code, *self._all([_held_values(value)], depth)]}
        fields = _fields(value, kind)
        if fields is not None:
            self.is_state = self.is_state or _compares_by_identity(kind)
            return {"$object": [kind.__qualname__, {name: self._all([item], depth)[0] for name, item in fields}]}
        try:
            return encode_leaf(value)
        except EncodingError:
            if not self._opens_objects:
                raise
            return self._of_object(value, kind, depth)

    def _of_object(self, value: Any, kind: type, depth: int) -> Json:
        """Return the tree of an object of any other type, from what pickle would save: how to make it, its state, its items."""
        if (place := self._open.get(id(value))) is not None:  # a child that refers to its parent
            return {"$object": ["", len(self._open) - place]}
        if (
            hasattr(kind, "__next__") or getattr(value, "nbytes", 0) >> 6 > self._left
        ):  # a step would exhaust an iterator
            raise _IncomparableError
        self._open[id(value)] = len(self._open)
        try:
            return {"$object": [kind.__qualname__, *self._all(self._saved_parts(value, kind), depth)]}
        finally:
            del self._open[id(value)]

    def _saved_parts(self, value: Any, kind: type) -> Sequence[Any]:
        if isinstance(value, KeysView | ValuesView | ItemsView):
            return [*value]
        reduce = copyreg.dispatch_table.get(kind)
        saved: Any = reduce(value) if reduce else value.__reduce_ex__(4)
        if type(saved) is str:  # the name of the only object of its kind
            return [saved]
        _, args, *rest = saved
        state, items, pairs = (*rest, None, None, None)[:3]
        code = ""
        if state and _compares_by_identity(kind) and len(self._open) == 1:
            self.is_state, self._left = True, min(self._left, MAX_STATE_ITEMS)
            code = step_fingerprint(kind)
        args = [each for each in args if each is not kind]
        if isinstance(value, set | frozenset):  # their order differs in each process
            args = [frozenset(each) if type(each) is list else each for each in args]
        pairs = [*map(list, pairs or ())] if issubclass(kind, OrderedDict) else dict(pairs or ())
        return [code, args, state, [*(items or ())], pairs]

    def _spend(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise _IncomparableError

    def _all(self, values: Iterable[Any], depth: int) -> list[Json]:
        if depth >= MAX_DEPTH:
            raise _IncomparableError
        made = [self.of(value, depth + 1) for value in values]
        self._spend(len(made))
        return made


def _compares_by_identity(kind: Any) -> bool:
    return kind.__eq__ is object.__eq__ and not issubclass(kind, enum.Enum)


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
        return None  # a plain subclass, or a subclass of list: it contains more than its fields
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
        has_state: whether the call can change what its arguments contain, or what its function holds.
    """

    function: str = ""
    fingerprint: str = ""
    arguments: Mapping[str, Any] = MappingProxyType({})
    version: str | None = None
    returns_plain: bool = False
    has_state: bool = False


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
        not getattr(function, "__closure__", None) or not _held_values(function),
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
        return CallIdentity(action.function_name, step_fingerprint(function), arguments, version, has_state=True)
    if not kwargs and len(args) <= len(info.parameters):
        arguments = digest_positional(info.parameters, args, secrets)
    else:
        arguments = digest_arguments(function, args, kwargs, secrets)
    has_state = False
    for form in arguments.values():
        if type(form) is str and form[:1] == STATE:
            has_state = True
    return CallIdentity(info.name, info.fingerprint, arguments, version, info.is_plain, has_state)


def forget_changed_state(action: Action, before: CallIdentity, secrets: KnownSecrets) -> tuple[CallIdentity, list[str]]:
    """Return the identity of a call that has ended, without the values that it has changed, and their names.

    Such a value differs at each call, so its state before the call tells nothing about the result. Arguments that are
    copied for a step cannot change.

    Args:
        action: the action.
        before: its identity before the call.
        secrets: the secrets of the run.
    """
    if type(action) is not PythonAction:
        return before, []
    now = digest_arguments(action.function, action.args, action.kwargs, secrets)
    changed = [name for name, form in before.arguments.items() if is_state(form) and now.get(name) != form]
    if _changes_container(action.function):
        changed.append("self")
    if not changed:
        return before, []
    return attrs.evolve(before, arguments={**before.arguments, **dict.fromkeys(changed, UNKNOWN)}), changed


def _arguments(action: Action, secrets: KnownSecrets) -> dict[str, Any]:
    if action.is_command or action.is_waiting:
        named = action.identity
    elif action.step_type == "start":
        started: Any = action
        named = started.inputs  # as passed: the new run applies its defaults itself
    else:
        named = action.arguments()
    return {name: _digest_value(value, secrets) for name, value in named.items()}
