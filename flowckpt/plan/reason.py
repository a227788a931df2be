"""Why a recorded result is no longer the result of its step."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import attrs

from flowckpt.fieldwise import Fieldwise


class ReasonKind(StrEnum):
    """What moved."""

    EVIDENCE = "evidence"
    """The outside world is not as the record says, or nobody can tell."""
    ARGUMENTS = "arguments"
    """The step is called with other arguments."""
    CODE = "code"
    """Its function was edited."""
    VERSION = "version"
    """Its `.version()` tag is another one."""
    FORCED = "forced"
    """Somebody asked for it: `--from`."""
    UPSTREAM = "upstream"
    """A step before it runs again."""
    FAILED = "failed"
    """It failed the last time, and that ended the run."""
    UNDONE = "undone"
    """What it did was undone, when the run failed."""
    UNDOING = "undoing"
    """What it did is to be undone, and that is not finished."""
    STARTED = "started"
    """It was started, and its end was never recorded."""


@attrs.frozen(eq=False, repr=False)
class Reason(Fieldwise):
    """One reason.

    Attributes:
        kind: what moved.
        detail: how, down to the leaf, in one sentence.
        is_proved: whether it is known to have moved; False for evidence that could not be checked.
    """

    kind: ReasonKind
    detail: str
    is_proved: bool = True

    @property
    def makes_stale(self) -> bool:
        """Whether it says that the record is no longer true, rather than that a rerun was asked for."""
        return self.kind in _STALE

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}"

    def to_document(self) -> dict[str, Any]:
        """Return the reason as plain JSON."""
        return {"kind": str(self.kind), "detail": self.detail}


_STALE = frozenset({ReasonKind.EVIDENCE, ReasonKind.ARGUMENTS, ReasonKind.CODE, ReasonKind.VERSION})
