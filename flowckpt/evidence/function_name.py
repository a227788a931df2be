"""The name under which a function of the program is recorded: `module:qualname`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import PurePath
from typing import Any

from flowckpt.errors import EvidenceError


def function_name(function: Callable[..., Any]) -> str:
    """Return the name of a function; the same one however its file is run.

    Args:
        function: a function that stands at the top of a module, or in a class there.

    Raises:
        EvidenceError: it has no name of its own, so that no other process could know which one is meant.
    """
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not callable(function) or not isinstance(module, str) or not isinstance(name, str) or "<" in name:
        raise EvidenceError(
            f"{function!r:.80} is no function with a name of its own",
            evidence_type="predicate",
            remedy="Write it with 'def' at the top of a module: lambdas and inner functions have no lasting name.",
        )
    return f"{_lasting(module)}:{name}"


def _lasting(module: str) -> str:
    """Return a module's name; a script's file instead of `__main__`, as the records of steps have it."""
    if module != "__main__":
        return module
    main = sys.modules["__main__"]
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None:
        return str(spec.name).removesuffix(".__main__")
    return PurePath(file).stem if file else module
