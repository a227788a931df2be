"""Modules that are imported on first use.

`import flowckpt` must be quick, and most of its modules are needed only by some runs. Imports inside functions would hide
the dependencies. So packages act as doors: one that uses `lazy_modules` or `lazy_exports` has modules or names as
attributes, and imports each on first use. `LazyModule` is for modules that cannot be reached through a package,
because that package imports their user before it is complete.
"""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

_MANY = 5_000
"""From this number of new objects on, a collection takes longer than it is worth."""


@contextmanager
def paused_collector() -> Iterator[None]:
    """Disable the garbage collector while many lasting objects are created, then move them to the oldest generation.

    Otherwise it would traverse all of them repeatedly, and once more when it is enabled again.
    """
    is_on = gc.isenabled()
    gc.disable()
    before = gc.get_count()[0]
    try:
        yield
    finally:
        if is_on:
            is_much = gc.get_count()[0] - before >= _MANY
            if is_much and not gc.get_freeze_count():  # objects that the program itself froze stay frozen
                gc.freeze()
                gc.unfreeze()  # to the oldest generation
            gc.enable()


def load_module(module: str) -> ModuleType:
    """Import a module of this package."""
    found = sys.modules.get(module)
    if found is not None:
        return importlib.import_module(module)  # waits if another thread is importing it
    with paused_collector():
        return importlib.import_module(module)


class LazyModule:
    """A module that is imported when an attribute is first read; as safe in threads as any import."""

    _module: Any = None

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        module = self._module
        if module is None or sys.modules.get(self._name) is not module:  # 0.1 µs, and import_module takes 0.7
            module = self._module = load_module(self._name)
        return getattr(module, attribute)


def lazy_modules(package: str, *names: str) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package that imports these of its modules on first use (PEP 562).

    Importing the package makes its modules available as attributes, and only those that are used get imported::

        from flowckpt.engine import session

        session.respond.send(…)  # imports flowckpt.engine.session.respond
    """

    def get(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return load_module(f"{package}.{name}")  # also sets the attribute of the package

    return get


def lazy_exports(
    package: str, exports: Mapping[str, str], scope: dict[str, Any], *, modules: str = ""
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__getattr__` and `__dir__` of a package whose names are imported on first use.

    Args:
        package: its name.
        exports: the names of each module, separated by spaces, by module.
        scope: its `globals()`, where used names are cached. Without an `__all__`, it gets one.
        modules: modules of the package that are attributes, too, separated by spaces.
    """
    places = {name: module for module, held in exports.items() for name in held.split()}
    names = scope.setdefault("__all__", sorted(places))
    module_of = lazy_modules(package, *modules.split())

    def get(name: str) -> Any:
        if name not in places:
            return module_of(name)
        found = scope[name] = getattr(load_module(places[name]), name)
        return found

    def names_of() -> list[str]:
        return sorted(names)

    return get, names_of
