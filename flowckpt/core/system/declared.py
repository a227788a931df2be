"""Declarative errors: fields as in a dataclass, texts from templates, pickling, an additional built-in base class.

A class declares its fields as a dataclass does; type checkers read `__init__` from them. A `derived` text, and the
default of `remedy`, is a template over the fields, over `{run}` (`workflow_id` as one word of a shell command) and over
`_words()`. A part in square brackets is dropped if a field in it is empty.

The names of classes and modules in these texts, and in records, are made here, too: they are the same however a program
is started.
"""

from __future__ import annotations

import builtins
import functools
import importlib.util
import re
import sys
from collections.abc import Mapping
from inspect import Parameter, Signature
from pathlib import Path
from typing import Any, Literal, dataclass_transform

_OPTIONAL_PART = re.compile(r"\[([^][]*)\]")
_FIELD = re.compile(r"\{(\w+)")


class _Field:
    def __init__(self, about: str, default: object, kind: Any = None) -> None:
        self.about, self.default, self.kind = about, default, kind


def field(about: str, *, default: Any = Parameter.empty, kw_only: bool = True) -> Any:
    """Declare a field that is an argument of the error, by keyword or (`kw_only=False`) by position."""
    return _Field(about, default, Parameter.KEYWORD_ONLY if kw_only else Parameter.POSITIONAL_OR_KEYWORD)


def derived(template: Any, *, init: Literal[False] = False) -> Any:
    """Declare a field that is not an argument: a constant, or a template of a text."""
    return _Field("", template)


class _Signature:
    """The signature of a class, made on demand because making all of them takes long."""

    def __get__(self, error: object, cls: Any) -> Signature:
        return _read_declaration(cls)[0]


@dataclass_transform(kw_only_default=True, field_specifiers=(field, derived))
class Declared:
    """An `__init__`, texts and pickling by declared fields."""

    args: tuple[Any, ...]
    __signature__ = _Signature()

    def __init_subclass__(cls) -> None:
        """Set the public module of the class, and describe its fields in its docstring."""
        if cls.__module__ == "flowckpt.store_errors":
            cls.__module__ = "flowckpt.errors"  # where programs import it, and its name in pickles and records
        shown = [part for part in (*cls.__bases__, cls) if part is cls or part.__base__ is Declared]
        fields = {n: each for part in shown for n, each in vars(part).items() if isinstance(each, _Field)}
        about = [f"    {n}: {each.about}." for n, each in fields.items() if each.about]
        if cls.__doc__ and about:
            start = "\n" + "    " * ("\n    " in cls.__doc__)  # Python 3.13 strips the indentation of docstrings
            cls.__doc__ = start.join([f"{cls.__doc__.rstrip()}\n", "Attributes:", *about, ""])

    def __init__(self, *given: Any, **named: Any) -> None:
        cls: Any = type(self)
        signature, templates = _read_declaration(cls)
        bound = signature.bind(*given, **named)
        bound.apply_defaults()
        values = vars(self)
        for name, value in bound.arguments.items():
            values[name] = _copy_value(value, signature.parameters[name].annotation)
        words = {**values, "run": shell_word(values.get("workflow_id", "")), **self._words()}
        for name, template in templates.items():
            values[name] = values.get(name) or (
                _fill_template(template, words) if isinstance(template, str) else template
            )
        self.args = (values["message"],)

    def _words(self) -> Mapping[str, object]:
        """Return the values of template names that are not fields."""
        return {}

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


class OfRun(Declared):
    """The field of the errors that concern one run."""

    workflow_id: str = field("the run", kw_only=False)


class OfStep(Declared):
    """The field of the errors that concern one step."""

    path: str = field("the step's path", kw_only=False)


class FlowckptError(Declared, Exception):
    """The root of all errors that flowckpt raises."""

    __module__ = "flowckpt.errors"

    message: str = field("what happened, with the offending value", kw_only=False)
    remedy: str = field("the suggested fix; may be empty", default="")

    def __str__(self) -> str:
        return f"{self.message}. {self.remedy}" if self.remedy else self.message


@functools.cache
def _read_declaration(cls: Any) -> tuple[Signature, dict[str, Any]]:
    """Return the signature of an error, and its templates and constants by field."""
    parameters: dict[str, Parameter] = {}
    templates: dict[str, Any] = {}
    for base in reversed(cls.__mro__[: cls.__mro__.index(Declared)]):
        fields = {} if "__init__" in vars(base) else base.__annotations__  # its own `__init__` sets its attributes
        for name, annotation in fields.items():
            value = vars(base).get(name, Parameter.empty)
            kind, default = (
                (value.kind, value.default) if isinstance(value, _Field) else (Parameter.KEYWORD_ONLY, value)
            )
            if kind is None:
                templates[name] = default
                parameters.pop(name, None)
                continue
            if name == "remedy" and isinstance(default, str):
                templates[name], default = default, ""
            parameters[name] = Parameter(name, kind, default=default, annotation=annotation)
    return Signature(sorted(parameters.values(), key=lambda each: each.kind)), templates


def _copy_value(value: Any, annotation: str) -> Any:
    """Return a copy of a mutable value, so that the caller cannot change it later."""
    if annotation.startswith("Sequence"):
        return tuple(value)
    if annotation.startswith("Mapping"):
        return {key: _copy_value(each, annotation.partition(", ")[2]) for key, each in value.items()}
    return value


def _fill_template(template: str, words: Mapping[str, Any]) -> str:
    """Fill a template: sequences of texts are joined, and optional parts with empty fields are dropped."""
    joined = {name: "; ".join(map(str, each)) if isinstance(each, tuple) else each for name, each in words.items()}
    parts = _OPTIONAL_PART.split(template)
    parts[1::2] = [part if all(joined[name] for name in _FIELD.findall(part)) else "" for part in parts[1::2]]
    return "".join(parts).format_map(joined)


def _rebuild(cls: Any, args: tuple[Any, ...], state: dict[str, Any]) -> Any:
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(state)
    return error


# The built-in base class of a failed step's error.


_UNFIT = (StopIteration, StopAsyncIteration, BaseExceptionGroup)
"""The first two cannot end a generator, and a group cannot be rebuilt from a record."""

_BUILTIN_KINDS: set[type] = set()


def with_builtin(cls: type, names: tuple[str, ...]) -> type:
    """Return a subclass that also derives from the first built-in exception of `names`; without one, the class."""
    kinds = (getattr(builtins, name, None) for name in names)
    fits: Any = next((kind for kind in kinds if _can_be_base(kind)), Exception)
    return cls if fits is Exception or cls in _BUILTIN_KINDS else _combine(cls, fits)


def _can_be_base(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, _UNFIT)


@functools.cache
def _combine(cls: type, kind: type) -> type:
    # `MemoryError.__new__` refuses subclasses with another base, and adds nothing to `Exception`.
    maker = Exception if kind is MemoryError else kind
    members = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "_builtin": maker}
    if issubclass(kind, OSError):
        members |= {name: _read_from_text(name) for name in ("errno", "strerror", "filename")}
    made = type(cls.__name__, (cls, kind), members)
    _BUILTIN_KINDS.add(made)
    return made


def _read_from_text(name: str) -> property:
    """Return an attribute of an `OSError`, read from its recorded text, the form of which Python defines."""

    def read(failure: Any) -> int | str | None:
        form = r"\[Errno (?P<errno>-?\d+)\] (?P<strerror>.*?)(: '(?P<filename>[^'\\]*)'( -> .*)?)?"
        found = re.fullmatch(form, failure.error_message, re.DOTALL)
        text = found[name] if found else None
        return int(text) if name == "errno" and text else text

    return property(read)


def declared_class(cls: type) -> type:
    """Return the declared class of a failure, without the additional built-in base class."""
    return cls.__bases__[0] if cls in _BUILTIN_KINDS else cls


def rebuild_failed(cls: Any, args: tuple[Any, ...], state: dict[str, Any]) -> Any:
    """Rebuild a pickled failure, with the built-in base class that its record names."""
    error = cls.__new__(cls, error_type=state["error_type"], error_bases=state["error_bases"])
    error.args = args
    error.__dict__.update(state)
    return error


_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@%+=:,./-_")


def shell_word(text: str) -> str:
    """Return a text as one word of a shell command, like `shlex.quote`, whose module takes long to import."""
    return text if text and _PLAIN.issuperset(text) else "'" + text.replace("'", "'\"'\"'") + "'"


def is_unicode(text: str) -> bool:
    """Return whether a text is valid Unicode: without lone surrogates, as in undecodable file names."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def type_name(cls: type) -> str:
    """Return the name of a class for errors and records: bare for builtins, otherwise `module.QualName`."""
    module, name = cls.__module__, cls.__qualname__
    if module != "__main__" or hasattr(sys.modules[module], name.partition(".")[0]):  # else a worker got it by value
        module = module_name(module)
    return name if module == "builtins" else f"{module}.{name}"


def is_named(recorded: str, cls: type) -> bool:
    """Return whether a recorded name of a class is that of a present class, which may have moved to another module.

    Args:
        recorded: the name, as `type_name` gave it.
        cls: the class.
    """
    if recorded == type_name(cls):
        return True
    module = recorded.removesuffix(f".{cls.__qualname__}")
    if module == recorded or cls.__module__ == "builtins":
        return False
    if module not in sys.modules:
        return not _may_define(module, cls.__name__)
    there: Any = sys.modules[module]
    for part in cls.__qualname__.split("."):
        there = getattr(there, part, None)
    return there is None or there is cls  # moved, or moved and imported under its earlier name


def _may_define(module: str, name: str) -> bool:
    """Return whether a module that is not loaded exists and mentions a name."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):  # a package above it does not exist
        return False
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return spec is not None
    return re.search(rf"\b{name}\b", Path(spec.origin).read_text(errors="replace")) is not None


def module_name(module: str) -> str:
    """Return the name of a module that is the same when its file is run as a script, and in a worker of that script."""
    package, _, last = module.rpartition(".")
    if module != "__main__" and last != "__mp_main__":
        return module
    loaded = sys.modules[module]
    spec, file = getattr(loaded, "__spec__", None), getattr(loaded, "__file__", None)
    if last == "__main__" and spec is not None:
        name = str(spec.name)
    else:
        name = f"{package}.{Path(file).stem if file else last}".lstrip(".")
    return name.removesuffix(".__main__")


def short_repr(value: object, most: int = 60) -> str:
    """Return the start of a value's `repr` on one line, or its type if its own `__repr__` fails."""
    try:
        return " ".join(repr(value).split())[:most]
    except Exception:
        return f"<{type_name(type(value))}>"
