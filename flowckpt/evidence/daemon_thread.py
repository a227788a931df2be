"""A thread for work that may never end, which neither the loop nor the end of the program waits for."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def run_in_daemon(work: Callable[[], T], seconds: float) -> T:
    """Run work that cannot be stopped, and wait for it no longer than a time.

    Args:
        work: what to do.
        seconds: how long to wait.

    Raises:
        TimeoutError: it did not end; its thread goes on by itself.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def settle(result: T | None, error: BaseException | None) -> None:
        if future.done():  # given up
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, error = None, None
        try:
            result = context.run(work)
        except BaseException as raised:
            error = raised
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, name="flowckpt-predicate", daemon=True).start()
    async with asyncio.timeout(seconds):
        return await future
