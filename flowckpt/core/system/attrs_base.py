"""Equality, hash, repr and notebook form of flowckpt's attrs classes, without generated code for each class.

attrs generates these methods as source text and compiles them when a class is defined. They are fast to call but slow
to define: for the classes of a plain resume, this took 4 % of the time from the start of Python to the next step, and
few runs compare or print them. So these classes use `eq=False, repr=False` and inherit equivalent methods.

`__init__` is compiled, too. A plain resume never instantiates half of the classes that it loads, and a program that
only imports the package instantiates even fewer: these classes are `lazy_frozen`.
"""

from __future__ import annotations

import functools
import importlib
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import attrs

__all__ = ["NOTEBOOK_PAGES", "FieldEquality", "ShownInNotebook", "complete_all", "lazy_define", "lazy_frozen"]

if TYPE_CHECKING:
    from attrs import define as lazy_define
    from attrs import frozen as lazy_frozen
else:

    def lazy_define(**how: Any) -> Any:
        """`attrs.define` for a class that is completed at its first use and has no slots."""
        return functools.partial(_complete_on_use, functools.partial(attrs.define, init=True, slots=False, **how))

    def lazy_frozen(**how: Any) -> Any:
        """`attrs.frozen` for a class that is completed at its first use and has no slots."""
        return functools.partial(_complete_on_use, functools.partial(attrs.frozen, init=True, slots=False, **how))


_completing = threading.RLock()
_LATE: list[Callable[[], None]] = []


def complete_all() -> None:
    """Complete every class that was not used yet, before a process forks many others."""
    while _LATE:
        _LATE.pop()()


def _complete_on_use(completed: Callable[[type], type], cls: type) -> type:
    """Complete a class when its first object is created, or its fields or its signature are read."""
    is_done = False

    def complete() -> None:
        nonlocal is_done
        with _completing:  # other threads wait here until the class is complete
            if not is_done:
                is_done = True
                completed(cls)
                delattr(cls, "__signature__")

    def make(made: Any, *arguments: Any, **fields: Any) -> None:
        complete()
        vars(cls)["__init__"](made, *arguments, **fields)

    _LATE.append(complete)
    setattr(cls, "__init__", make)  # noqa: B010 - mypy: not an assignment to a method
    for name in ("__attrs_attrs__", "__signature__"):
        setattr(cls, name, _CompletedOnAccess(name, complete))
    return cls


class _CompletedOnAccess:
    """Placeholder for an attribute of a class that is set when the class is completed."""

    def __init__(self, name: str, complete: Callable[[], None]) -> None:
        self._name = name
        self._complete = complete

    def __get__(self, instance: object, owner: type) -> Any:
        self._complete()
        return getattr(owner, self._name)


class FieldEquality:
    """Compares, hashes and prints an attrs class by its fields and their `eq`, `hash` and `repr`."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        """Compare the fields; objects of different classes are not equal."""
        if other.__class__ is not self.__class__:
            return NotImplemented
        return all(_key(field, self) == _key(field, other) for field in _fields(self) if field.eq)

    def __hash__(self) -> int:
        """Hash the compared fields, except those with `hash=False`."""
        fields = [field for field in _fields(self) if field.eq and field.hash is not False]
        return hash((self.__class__, *(_key(field, self) for field in fields)))

    def __repr__(self) -> str:
        """Return the class and its fields as they would be written."""
        shown = ", ".join(f"{field.name}={_format_field(field, self)}" for field in _fields(self) if field.repr)
        return f"{self.__class__.__qualname__.rsplit('>.', 1)[-1]}({shown})"


class ShownInNotebook:
    """Shown as HTML in notebooks; the code that draws it is imported only there."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        html: str = importlib.import_module(NOTEBOOK_PAGES).html_fragment(self)
        return html


NOTEBOOK_PAGES = "flowckpt.report.notebook"


def _fields(value: Any) -> tuple[Any, ...]:
    """Return the fields of an object, as `Any`: the stubs of attrs lack some documented attributes."""
    fields: tuple[Any, ...] = attrs.fields(value.__class__)
    return fields


def _key(field: Any, value: object) -> Any:
    found = getattr(value, field.name)
    return found if field.eq_key is None else field.eq_key(found)


def _format_field(field: Any, value: object) -> str:
    found = getattr(value, field.name)
    return str(field.repr(found)) if callable(field.repr) else repr(found)
