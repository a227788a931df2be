"""Whether the current code of a workflow only repeats an earlier attempt, and a logger that is silent then."""

from __future__ import annotations

import logging
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

_is_repeated: ContextVar[bool] = ContextVar("flowckpt_is_repeated", default=False)

is_repeated = _is_repeated.get
"""Return whether the calling generator is being replayed from its record."""


begin_repeating, end_repeating = _is_repeated.set, _is_repeated.reset
"""Set and reset for each recorded step; a context manager would take 1.2 µs more."""


if TYPE_CHECKING:
    _Adapter = logging.LoggerAdapter[logging.Logger]
else:
    _Adapter = logging.LoggerAdapter


class WorkflowLogger(_Adapter):
    """A logger for the code of workflows: a resume does not repeat its messages."""

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 - logging's name
        """Return whether a message of this level is logged now."""
        return not is_repeated() and self.logger.isEnabledFor(level)

    def process(self, msg: Any, kwargs: Any) -> tuple[Any, Any]:
        """Return the message unchanged."""
        return msg, kwargs


def workflow_logger(name: str | logging.Logger) -> WorkflowLogger:
    """Return a logger for the body of a workflow; it is silent during replay.

    It logs from the first step that is executed, because an earlier attempt has logged everything before. Outside the
    body of a workflow it is a plain logger.

    Args:
        name: the logger, or its name as for `logging.getLogger`.
    """
    return WorkflowLogger(logging.getLogger(name) if isinstance(name, str) else name, {})
