"""Modules that are imported when something of them is first used.

`import flowckpt` and the names of its front door must come quickly, and most of the machinery behind them is needed only
once a run starts. A function that imports would hide that; a module says it here, at its top, like any other import::

    if TYPE_CHECKING:
        from flowckpt.engine import session
    else:
        session = LazyModule("flowckpt.engine.session")
"""

from __future__ import annotations

import importlib
from typing import Any


class LazyModule:
    """Stands for a module until an attribute of it is asked for; importing is as safe among threads as ever."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)
