"""Placeholders for values that a plan does not have: outputs of steps that it does not run, and secrets."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from flowckpt.core.system.secret import absent_secret

if TYPE_CHECKING:
    from flowckpt.core.dsl import Step


class PlanStopped(BaseException):
    """Raised if the generator uses the output of a step that a plan does not run; it is not an error."""


def _stop(self: NotRun, *_: Any, **__: Any) -> NoReturn:
    raise PlanStopped(self._path)


class SecretNeeded(PlanStopped):
    """Raised if the generator uses a secret input that a plan does not have."""


def use_missing_secret(name: str) -> NoReturn:
    """Stop a plan that uses a missing secret input, for `BoundInputs.values`.

    Args:
        name: the input.

    Raises:
        SecretNeeded: always.
    """
    raise SecretNeeded(name)


def make_placeholder(step: Step[Any], path: str) -> Any:
    """Return a placeholder for the output of an ephemeral step, which a plan does not run."""
    return absent_secret(partial(_stop_plan, path)) if step.modifiers.is_secret else NotRun(path)


def _stop_plan(path: str) -> NoReturn:
    raise PlanStopped(path)


class NotRun:
    """Placeholder for the output of an ephemeral step, which a plan does not run; it may be passed on, but not used."""

    def __init__(self, path: str) -> None:
        object.__setattr__(self, "_path", path)

    def __getattribute__(self, name: str) -> Any:
        if name in ("_path", "__class__"):
            return object.__getattribute__(self, name)
        raise PlanStopped(object.__getattribute__(self, "_path"))

    __eq__ = __hash__ = __setattr__ = __delattr__ = __str__ = __repr__ = __format__ = _stop


_BINARY = "add sub mul matmul truediv floordiv mod divmod pow lshift rshift and or xor"
_OTHER = """
    lt le gt ge bool int float complex index bytes neg pos abs invert round trunc floor ceil fspath
    len length_hint iter next reversed contains getitem setitem delitem call
    enter exit aenter aexit aiter anext await
"""
for _name in (
    *_BINARY.split(),
    *(f"r{name}" for name in _BINARY.split()),
    *_OTHER.split(),
):  # Python looks up special methods only in the class
    setattr(NotRun, f"__{_name}__", _stop)
