"""Equality, hash, repr and notebook form of our attrs classes, by their fields, without code that is generated for each of them.

attrs writes these three methods as source text and compiles it where the class is defined. That makes them the quickest
to call, and slow to have: for the classes of a plain resume it was 4 % of all that happens from the start of Python to
the next step, and hardly any run compares or prints one. So these classes say `eq=False, repr=False`, and inherit what
attrs would have made.
"""

from __future__ import annotations

import importlib
from typing import Any

import attrs


class FieldEquality:
    """Compares, hashes and prints an attrs class by its fields, as `eq`, `hash` and `repr` of each field say."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        """Compare the fields; objects of different classes are not equal."""
        if other.__class__ is not self.__class__:
            return NotImplemented
        return all(_key(field, self) == _key(field, other) for field in _fields(self) if field.eq)

    def __hash__(self) -> int:
        """Hash the fields that are compared, but for those with `hash=False`."""
        fields = [field for field in _fields(self) if field.eq and field.hash is not False]
        return hash((self.__class__, *(_key(field, self) for field in fields)))

    def __repr__(self) -> str:
        """Return the class and its fields as they would be written."""
        shown = ", ".join(f"{field.name}={_shown(field, self)}" for field in _fields(self) if field.repr)
        return f"{self.__class__.__qualname__.rsplit('>.', 1)[-1]}({shown})"


class ShownInNotebook:
    """Has an HTML form for the cells of notebooks, which the pages draw: they are loaded only there."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        html: str = importlib.import_module(NOTEBOOK_PAGES).html_fragment(self)
        return html


NOTEBOOK_PAGES = "flowckpt.report.notebook"


def _fields(value: Any) -> tuple[Any, ...]:
    """Return the fields of an object; as `Any`, for the stubs of attrs do not know all that it documents of them."""
    fields: tuple[Any, ...] = attrs.fields(value.__class__)
    return fields


def _key(field: Any, value: object) -> Any:
    found = getattr(value, field.name)
    return found if field.eq_key is None else field.eq_key(found)


def _shown(field: Any, value: object) -> str:
    found = getattr(value, field.name)
    return str(field.repr(found)) if callable(field.repr) else repr(found)
