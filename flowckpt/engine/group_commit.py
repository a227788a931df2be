"""Steps that end at the same time share one checkpoint.

A step that has ended and is to be durable asks for a save. While a save is going on, those who ask form a group: the
first of them saves for all, as soon as its turn comes, and the others wait for what becomes of it. So a fan-out of a
thousand durable children takes as many syncs as the disk has time for, and not a thousand.

A group is closed before its checkpoint is made, and whoever joined it had its result in the history by then. So what is
acknowledged to all of them holds the results of all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


class GroupCommit:
    """Makes one save of those that are asked for while another goes on."""

    def __init__(self) -> None:
        self.is_saving = False
        """Whether a save is going on."""
        self._turn: asyncio.Future[None] | None = None
        self._group: asyncio.Future[bool] | None = None

    async def saved(self, save: Callable[[], Awaitable[T]]) -> T | None:
        """Save, or have it done by another; return what came of it, or None where another did it.

        Args:
            save: makes a checkpoint of everything that is recorded.

        Raises:
            FlowckptError: the save failed, whoever did it.
        """
        while self.is_saving:
            group = self._group
            if group is None:
                return await self._lead(save)
            if await asyncio.shield(group):
                return None
            # else the one that was to save for us was cancelled before it could
        self.is_saving = True
        try:
            return await save()
        finally:
            self._pass_on()

    async def _lead(self, save: Callable[[], Awaitable[T]]) -> T:
        loop = asyncio.get_running_loop()
        group = self._group = loop.create_future()
        turn = self._turn = loop.create_future()
        is_done = False
        try:
            try:
                await asyncio.shield(turn)
            except asyncio.CancelledError:
                if turn.done():
                    self._pass_on()
                elif self._turn is turn:
                    self._turn = None
                raise
            self._group = None
            self.is_saving = True
            try:
                made = await save()
            finally:
                self._pass_on()
            is_done = True
        except Exception as error:
            group.set_exception(error)
            group.exception()  # there may be nobody else in the group
            raise
        finally:
            if self._group is group:
                self._group = None
            if not group.done():
                group.set_result(is_done)
        return made

    def _pass_on(self) -> None:
        """Let the group that waits have its turn at once: else whoever has just saved would come first, for ever."""
        turn, self._turn = self._turn, None
        if turn is None:
            self.is_saving = False
        else:
            turn.set_result(None)
