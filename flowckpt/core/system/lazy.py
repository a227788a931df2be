"""Modules that are imported when something of them is first used.

`import flowckpt` must be quick, and most of its modules are needed only by some runs. A function that imports would hide
that. Packages are the doors: a package that uses `lazy_modules` or `lazy_exports` has modules or names as attributes, and
imports each at its first use. `LazyModule` stands for a module that no door can lead to: one that its own package imports
before the package is whole.
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
"""So many new objects take the garbage collector longer to look through than they are worth."""


@contextmanager
def uncollected() -> Iterator[None]:
    """Keep the garbage collector off while much is made that stays, and then have it take all of that for old.

    It would look through all of it again and again; and once more, as soon as it is on.
    """
    is_on = gc.isenabled()
    gc.disable()
    before = gc.get_count()[0]
    try:
        yield
    finally:
        if is_on:
            is_much = gc.get_count()[0] - before >= _MANY
            if is_much and not gc.get_freeze_count():  # what a program froze itself stays frozen
                gc.freeze()
                gc.unfreeze()  # into the oldest generation
            gc.enable()


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


def lazy_modules(package: str, *names: str) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package, which imports its modules of these names when they are first used (PEP 562).

    A package with it is a door: what imports the package has its modules as attributes, and pays for those that it uses::

        from flowckpt.engine import session

        session.respond.send(…)  # imports flowckpt.engine.session.respond
    """

    def get(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return loaded(f"{package}.{name}")  # which makes it an attribute of the package

    return get


def lazy_exports(
    package: str, exports: Mapping[str, str], scope: dict[str, Any], *, modules: str = ""
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__getattr__` and `__dir__` of a package whose names are imported when they are first used.

    Args:
        package: its name.
        exports: by module, the names that it has, separated by spaces.
        scope: its `globals()`, which keeps a name once it was used. If it has no `__all__`, that is what it exports.
        modules: those of its modules that are attributes too, separated by spaces.
    """
    places = {name: module for module, held in exports.items() for name in held.split()}
    names = scope.setdefault("__all__", sorted(places))
    module_of = lazy_modules(package, *modules.split())

    def get(name: str) -> Any:
        if name not in places:
            return module_of(name)
        found = scope[name] = getattr(loaded(places[name]), name)
        return found

    def names_of() -> list[str]:
        return sorted(names)

    return get, names_of
