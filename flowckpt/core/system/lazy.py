"""Modules that are imported when something of them is first used.

`import flowckpt` must be quick, and most of its modules are needed only once a run starts. A function that imports would
hide that; a module says it here, at its top, like any other import::

    if TYPE_CHECKING:
        from flowckpt.engine import session
    else:
        session = LazyModule("flowckpt.engine.session")
"""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any


@contextmanager
def uncollected() -> Iterator[None]:
    """Keep the garbage collector off while much is made that stays; it would look through all of it again and again."""
    is_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_on:
            gc.enable()


def age_objects() -> None:
    """Move all objects to the oldest generation of the garbage collector, without looking through them."""
    if gc.isenabled() and not gc.get_freeze_count():  # a program that froze objects itself keeps them frozen
        gc.freeze()
        gc.unfreeze()


def loaded(module: str) -> ModuleType:
    """Import a module of this package, with all that it imports."""
    found = sys.modules.get(module)
    if found is not None:
        return importlib.import_module(module)  # which waits where another thread is at it
    with uncollected():
        return importlib.import_module(module)


class LazyModule:
    """Stands for a module until an attribute of it is asked for; importing is as safe among threads as ever."""

    _module: Any = None

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        module = self._module
        if module is None or sys.modules.get(self._name) is not module:  # 0.1 µs, and import_module takes 0.7
            module = self._module = loaded(self._name)
        return getattr(module, attribute)


def lazy_exports(
    package: str, exports: Mapping[str, str], names: Sequence[str], scope: dict[str, Any]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__getattr__` and `__dir__` of a package whose names are imported when they are first used (PEP 562).

    Args:
        package: its name.
        exports: by module, the names that it has, separated by spaces.
        names: its `__all__`.
        scope: its `globals()`, which keeps a name once it was used.
    """
    modules = {name: module for module, held in exports.items() for name in held.split()}

    def get(name: str) -> Any:
        module = modules.get(name)
        if module is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = scope[name] = getattr(loaded(module), name)
        return found

    def names_of() -> list[str]:
        return sorted(names)

    return get, names_of
