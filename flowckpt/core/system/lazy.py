"""Modules that are imported when something of them is first used.

`import flowckpt` must be quick, and most of its modules are needed only once a run starts. A function that imports would
hide that; a module says it here, at its top, like any other import::

    if TYPE_CHECKING:
        from flowckpt.engine import session
    else:
        session = LazyModule("flowckpt.engine.session")
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any


class LazyModule:
    """Stands for a module until an attribute of it is asked for; importing is as safe among threads as ever."""

    _module: Any = None

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        module = self._module
        if module is None or sys.modules.get(self._name) is not module:  # 0.1 µs, and import_module takes 0.7
            module = self._module = importlib.import_module(self._name)
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
        found = scope[name] = getattr(importlib.import_module(module), name)
        return found

    def names_of() -> list[str]:
        return sorted(names)

    return get, names_of
