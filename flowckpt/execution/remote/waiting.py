"""Waiting for work that runs elsewhere, until it has ended, its time is over, or nobody wants it any more."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from flowckpt.errors import StepTimeoutError
from flowckpt.execution.interrupts import Interrupts
from flowckpt.execution.late_cancel import deliver_later
from flowckpt.executors.base import KnowsStoppedWork, StopsWork


async def answer_of(
    future: Future[Any],
    executor: Any,
    *,
    path: str,
    timeout_seconds: float | None,
    interrupts: Interrupts,
    on_left: Callable[[Callable[[], bool]], None],
) -> Any:
    """Wait for a future, and leave nothing running that the executor can stop.

    Work that has ended by itself counts as ended, even where a cancel came a moment later.

    Args:
        future: what the executor gave for the work.
        executor: stops it, where it can.
        path: the step, for errors.
        timeout_seconds: the limit, or None.
        interrupts: the signals.
        on_left: told of work that was left to itself, with what tells whether it is still at it.

    Raises:
        StepTimeoutError: it did not end in time.
        asyncio.CancelledError: the wait was cancelled.
        Exception: what the executor says of the work.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    is_late = False

    def settle() -> None:
        if not ended.done():
            ended.set_result(None)

    def tell(_: Future[Any]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(settle)

    def stop() -> None:
        if isinstance(executor, StopsWork):
            executor.stop(future)  # the future ends soon
            if isinstance(executor, KnowsStoppedWork):
                on_left(lambda: executor.is_at_work(future))
        else:
            future.cancel()
            if not future.done():
                on_left(lambda: not future.done())
            settle()  # what has begun cannot be stopped, and is not waited for

    def time_is_over() -> None:
        nonlocal is_late
        if not future.done():
            is_late = True
            stop()

    future.add_done_callback(tell)
    timer = None if timeout_seconds is None else loop.call_later(timeout_seconds, time_is_over)
    cancels: list[asyncio.CancelledError] = []
    try:
        while not ended.done():
            try:
                await asyncio.wait({ended})
            except asyncio.CancelledError as cancel:
                cancels.append(cancel)
                stop()
    except BaseException:  # a second signal, or the loop is gone: nothing can be awaited any more
        stop()
        raise
    finally:
        if timer is not None:
            timer.cancel()
    has_answer = future.done() and not future.cancelled() and future.exception() is None
    if cancels and not has_answer:
        raise cancels[0]
    if is_late and not has_answer:
        assert timeout_seconds is not None
        raise StepTimeoutError(path, timeout_seconds=timeout_seconds)
    if cancels:
        deliver_later(len(cancels), interrupts)
    return future.result(timeout=0)
