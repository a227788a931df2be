"""What a step can know of itself while it runs."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Mapping
from contextvars import ContextVar
from hashlib import sha256
from typing import Any

import attrs

from flowckpt.codec import dumps
from flowckpt.errors import FlowckptError


@attrs.frozen
class CurrentStep:
    """The step that is running.

    Attributes:
        workflow_id: its run.
        path: its place in the run.
        attempt: the attempt of the run, from 1.
        tries: which try of the step this is, from 1.
    """

    workflow_id: str
    path: str
    attempt: int
    tries: int
    _arguments: Mapping[str, Any] = attrs.field(factory=dict, repr=False)

    @property
    def idempotency_key(self) -> str:
        """A key for services that do a request once: the same in every try, every attempt and every process.

        It is made of the run's id, the step's path and its arguments; another request gets another key.
        """
        told = dumps([self.workflow_id, self.path, dict(sorted(self._arguments.items()))])
        return urlsafe_b64encode(sha256(told.encode()).digest()[:24]).decode()


Told = tuple[str, str, int, int, Mapping[str, Any]]

_current: ContextVar[Told | None] = ContextVar("flowckpt_current_step", default=None)

tell_current = _current.set
"""Say which step runs now, in this context and those that are copied from it; None for none.

It is told as a bare tuple of the fields of `CurrentStep`: few steps ask, and making one takes 0.6 µs.
"""


def current_step() -> CurrentStep:
    """Return the step that is running; to be called inside it.

    Raises:
        FlowckptError: no step of flowckpt is running here.
    """
    told = _current.get()
    if told is None:
        raise FlowckptError(
            "current_step() was called where no step is running",
            remedy="Call it inside the function of a step, in the thread or task that runs it.",
        )
    return CurrentStep(*told)
