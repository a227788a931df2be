"""Engine work inside a step that runs in place: the loop stands still, so nothing may have to wait for it."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

from flowckpt.blocking import blocking_allowed
from flowckpt.errors import FlowckptError

T = TypeVar("T")


def driven(work: Awaitable[T]) -> T:
    """Do what would be awaited, right here.

    Args:
        work: something that waits for nothing but what blocks: the stores of flowckpt do, where that is allowed.

    Raises:
        FlowckptError: it waits for the loop.
    """
    with blocking_allowed(True):
        steps = work.__await__()
        try:
            next(steps)
        except StopIteration as stop:
            value: T = stop.value
            return value
    close = getattr(steps, "close", None)
    if close is not None:
        close()
    raise FlowckptError(
        "a step that runs in place cannot wait for something that needs the event loop",
        remedy="Make the step an async function and await save_async(); or give it a .timeout(), so that it runs on a "
        "thread of its own.",
    )
