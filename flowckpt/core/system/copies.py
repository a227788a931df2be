"""Copies of values, so that the changes that a call makes in place stay its own.

A step works on copies of its arguments, in every try, and each drive of a workflow on copies of its inputs: a resumed
run does not repeat what a step changes in place, so the workflow must not see it in an uninterrupted run either. Values
are copied, with everything in them: containers, arrays, data frames, namespaces, and data classes (attrs, dataclasses,
pydantic) that compare by value. Other objects are not, nor is the object of a bound method: the engine warns if a call
changes it.
"""

from __future__ import annotations

import copy
import sys
from collections import deque
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any

import attrs

from flowckpt.core.system import external

IMMUTABLE = frozenset({int, str, float, bool, type(None), bytes, complex, range, type(Path()), FunctionType, type})
"""Types whose values are not copied, without a closer look."""


class Copier:
    """Copies the values of one call: an object that two of them share is copied once."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, Any]] = {}  # the original, too: its address must stay its own

    def copy_function(self, function: Any) -> Any:
        """Return the function; of a partial, a copy with copies of its arguments."""
        if type(function) is partial:
            keywords = {name: self.copy_whole(value) for name, value in function.keywords.items()}
            return partial(self.copy_function(function.func), *map(self.copy_whole, function.args), **keywords)
        return function

    def copy_whole(self, value: Any) -> Any:
        """Copy a value with everything in it, or nothing of it."""
        try:
            return self._copy(value)
        except Exception:  # the object's own code failed, or it cannot be copied
            return value

    def _copy_all(self, values: Iterable[Any]) -> tuple[Any, ...]:
        return tuple([self._copy(value) for value in values])

    def _copy(self, value: Any) -> Any:
        kind = type(value)
        if kind in IMMUTABLE:
            return value
        if (known := self._known.get(id(value))) is not None:
            return known[1]
        made = self._copy_container(value) if isinstance(value, _CONTAINERS) else self._copy_object(value, kind)
        self._known[id(value)] = value, made
        return made

    def _copy_container(self, value: Any) -> Any:
        if isinstance(value, tuple):
            items = self._copy_all(value)
            is_same = all(new is old for new, old in zip(items, value, strict=True))
            return value if is_same else items if type(value) is tuple else type(value)._make(items)  # type: ignore[attr-defined]
        made = copy.copy(value)
        self._known[id(value)] = value, made  # it may contain itself
        if isinstance(made, dict):
            for key, item in made.items():
                if type(item) not in IMMUTABLE:
                    dict.__setitem__(made, key, self._copy(item))  # an existing key: the dictionary keeps its size
        elif isinstance(made, list | deque):
            for index, item in enumerate(made):
                if type(item) not in IMMUTABLE:
                    made[index] = self._copy(item)
        return made

    def _copy_cells(self, frame: Any) -> Any:
        """Copy what a data frame or series holds in columns of objects, in place of the frame's own."""
        if frame.ndim == 1:
            return self._copy_column(frame)
        for place, dtype in enumerate(frame.dtypes):
            if dtype.kind == "O" and (own := self._copy_column(column := frame.iloc[:, place])) is not column:
                frame.isetitem(place, own)
        return frame

    def _copy_column(self, column: Any) -> Any:
        # Of a million texts, pandas knows in 10 ms that they are texts.
        if column.dtype != object or not sys.modules["pandas"].api.types.infer_dtype(column).startswith("mixed"):
            return column
        cells = column.to_numpy(copy=True)
        for index, cell in enumerate(cells):
            cells[index] = self._copy(cell)
        return column._constructor(cells, index=column.index, name=column.name, dtype=object).__finalize__(column)

    def _copy_object(self, value: Any, kind: Any) -> Any:
        if kind is partial:
            return self.copy_function(value)
        bases = kind.__mro__
        for top, name in ((cls.__module__.partition(".")[0], cls.__name__) for cls in bases):
            if (
                name in _COPIED.get(top, ()) and kind.__name__ != "memmap"
            ):  # a file, which may be larger than the memory
                if name != "NDFrame":
                    return copy.deepcopy(value)
                return self._copy_cells(value.copy(deep=False) if _is_copied_on_write() else copy.deepcopy(value))
        is_data_class = attrs.has(kind) or external.dataclasses.is_dataclass(kind) or external.is_pydantic(kind)
        if not is_data_class or type(kind.__eq__) is not FunctionType or hasattr(kind, "__del__"):
            return value
        made = copy.copy(value)
        self._known[id(value)] = value, made
        slots = {name for cls in bases for name in _names_of(vars(cls).get("__slots__", ()))}
        for name in {*getattr(made, "__dict__", ()), *slots} - {"__weakref__", "__dict__"}:
            if hasattr(made, name) and (own := self._copy(old := getattr(made, name))) is not old:
                object.__setattr__(made, name, own)
        return made


_CONTAINERS = (list, dict, set, tuple, bytearray, deque)
_COPIED: Mapping[str, frozenset[str]] = {
    "argparse": frozenset({"Namespace"}),
    "array": frozenset({"array"}),
    "collections": frozenset({"ChainMap", "UserDict", "UserList"}),
    "types": frozenset({"SimpleNamespace"}),
    "numpy": frozenset({"ndarray"}),
    "pandas": frozenset({"NDFrame", "ExtensionArray"}),  # the bases of data frames, series and pandas' own arrays
    "polars": frozenset({"DataFrame", "Series"}),
}
"""The classes that are copied, with their subclasses, by package."""


def _names_of(slots: Any) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _is_copied_on_write() -> bool:
    """Return whether pandas copies the data of a shallow copy when one of the two is changed."""
    return int(sys.modules["pandas"].__version__.partition(".")[0]) >= 3
