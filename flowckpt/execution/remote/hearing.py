"""What the engine hears of a step in a worker while it runs: how far it is, and what it saves."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import pickle
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from flowckpt.errors import FlowckptError
from flowckpt.execution.current import Told
from flowckpt.execution.current_step import CurrentStep
from flowckpt.execution.handing_in import has_ended
from flowckpt.execution.remote.plain_data import read_plain
from flowckpt.execution.remote.post import LOAD, PROGRESS, SAVE

_log = logging.getLogger(__name__)

Reply = Callable[[bytes], None]


class Hearing:
    """Hears one try of a step; made in the loop, and called from any thread.

    Args:
        told: what the step may know of itself; the engine's desk is in it.
    """

    def __init__(self, told: Told) -> None:
        self._told = told
        self._loop = asyncio.get_running_loop()
        self._is_over = False

    def __call__(self, message: bytes, reply: Reply | None) -> None:
        """Take a message of the step.

        Args:
            message: what `flowckpt.execution.remote.post` carried.
            reply: sends the answer; None where none is wanted.
        """
        try:
            kind, content = read_plain(message)
            if reply is None:
                if kind == PROGRESS and not self._is_over:
                    self._told[7].progress(self._now, *content)
                return
        except Exception as error:  # whatever a worker sends, the engine goes on
            _log.warning("run %s: step %s said something unreadable: %s", self._told[0], self._told[1], error)
            if reply is not None:
                reply(_failed(FlowckptError(f"the engine cannot read what step {self._told[1]!r} said: {error}")))
            return
        answering = self._answer(kind, content)
        try:
            answer = asyncio.run_coroutine_threadsafe(answering, self._loop)
        except RuntimeError:  # the loop is closed
            answering.close()
            reply(_failed(has_ended(self._told[1], self._told[3])))
            return
        answer.add_done_callback(functools.partial(_reply, reply))

    @property
    def _now(self) -> CurrentStep:
        return CurrentStep(*self._told)

    def end(self) -> None:
        """Hear nothing more: nobody waits for the step any longer."""
        self._is_over = True

    async def _answer(self, kind: str, content: Any) -> Any:
        if self._is_over:
            raise has_ended(self._told[1], self._told[3])
        if kind == SAVE:
            await self._told[7].save_recorded(self._now, content)
            return None
        if kind == LOAD:
            return self._told[7].held(self._told[1])
        raise FlowckptError(f"a worker asked for {kind!r:.80}")


def _reply(reply: Reply, answer: Future[Any]) -> None:
    """Send what came of a question; a save that was cancelled came to nothing that is known."""
    with contextlib.suppress(Exception):
        if answer.cancelled():
            reply(_failed(FlowckptError("the run was stopped before the answer")))
        elif (error := answer.exception()) is not None:
            reply(_failed(error))
        else:
            reply(pickle.dumps((True, answer.result())))


def _failed(error: BaseException) -> bytes:
    try:
        return pickle.dumps((False, error))
    except Exception:
        return pickle.dumps((False, FlowckptError(f"{type(error).__name__}: {error}")))
