"""Cancels that came when the work had just ended."""

from __future__ import annotations

import asyncio

from flowckpt.execution.interrupts import Interrupts


def deliver_later(count: int, interrupts: Interrupts) -> None:
    """Let cancels that came too late to stop the work stop what follows, once its result is safe.

    Args:
        count: how many there were.
        interrupts: the signals.
    """
    task = asyncio.current_task()
    assert task is not None
    for index in range(count):
        task.uncancel()
        if index or not interrupts.noted:  # a signal is noted: the engine reads that where nothing can be lost
            task.cancel()
