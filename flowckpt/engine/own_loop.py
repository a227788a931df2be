"""A loop of its own for what is called from code that is not async."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from flowckpt.blocking import blocking_allowed
from flowckpt.errors import NestedLoopError

T = TypeVar("T")


def in_own_loop(work: Coroutine[Any, Any, T], door: str) -> T:
    """Run something in a loop of its own, which it may block, and return what it returns.

    Args:
        work: what to run.
        door: what the caller is called, for the error.

    Raises:
        NestedLoopError: a loop runs in this thread already.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        work.close()
        raise NestedLoopError(door)

    async def alone() -> T:
        with blocking_allowed(True):
            return await work

    with asyncio.Runner() as runner:
        return runner.run(alone())
