"""Hands what a run tells to whoever iterates over its events, one at a time.

The run goes on in a task of its own, because much of it may happen at once; but in step with its listener: what tells an
event goes on when the next one is asked for. So a listener that stops, stops the run at the very event.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TypeAlias

TYPE_CHECKING = False
if TYPE_CHECKING:
    from flowckpt.events import Event

Tell: TypeAlias = Callable[["Event"], Awaitable[None]]
"""Told each event; awaited, so that it can hold the run up."""


async def told_by(work: Callable[[Tell], Awaitable[None]]) -> AsyncGenerator[Event, None]:
    """Run `work` and yield what it tells.

    A cancel of the listener is handed on to the run, whose last events are still yielded; a listener that goes away
    cancels it, too, and waits for its end.

    Args:
        work: told whom to tell.
    """
    loop = asyncio.get_running_loop()
    told: asyncio.Queue[tuple[Event, asyncio.Future[None]] | None] = asyncio.Queue()
    is_heard, is_cancelled = True, False

    async def tell(event: Event) -> None:
        if is_heard:
            heard: asyncio.Future[None] = loop.create_future()
            told.put_nowait((event, heard))
            await heard

    running = asyncio.ensure_future(work(tell))
    running.add_done_callback(lambda _: told.put_nowait(None))
    try:
        while True:
            try:
                item = await told.get()
            except asyncio.CancelledError:
                is_cancelled = True
                running.cancel()
                continue
            if item is None:
                break
            event, heard = item
            if heard.cancelled():
                continue
            yield event
            if not heard.done():
                heard.set_result(None)
    finally:
        is_heard = False
        while not running.done():
            running.cancel()
            await asyncio.wait({running})
    if is_cancelled:
        running.exception()  # retrieved: the cancel weighs more
        raise asyncio.CancelledError
    await running
