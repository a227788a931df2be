"""Where a step in a worker hands in what it tells and saves.

Where the executor has a way up to the engine, the desk of the engine gets it. Where it has none, the step knows who it is
and what it saved elsewhere, and no more: what cannot be made durable is refused.
"""

from __future__ import annotations

import os
import pickle
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from flowckpt import codec
from flowckpt.errors import ExecutorError
from flowckpt.execution.handing_in import checked_progress, has_ended, running_loop, saved_in_loop
from flowckpt.execution.remote.post import LOAD, SAVE, Post, PostClosedError
from flowckpt.lazy import LazyModule

if TYPE_CHECKING:
    import asyncio

    from flowckpt.execution.current_step import CurrentStep
    from flowckpt.executors.way_up import WayUp
else:  # only async functions need it
    asyncio = LazyModule("asyncio")

_opening = threading.Lock()


class Kept(NamedTuple):
    """What the engine sends along of a step that stays there.

    Attributes:
        executor: the name of the executor.
        most_tries: how many tries the step has in all.
        is_followed: whether anybody follows the run.
        state: what it saved last, as it is recorded; empty where it has saved nothing.
        may_be_old: whether the executor may run the step again by itself, so that the engine is asked for the state.
    """

    executor: str
    most_tries: int
    is_followed: bool
    state: tuple[Any, ...]
    may_be_old: bool


class FarDesk:
    """The desk of one try of a step in a worker.

    Args:
        kept: what the engine sent along.
        way: the way up, where the executor has one.
    """

    def __init__(self, kept: Kept, way: WayUp | None) -> None:
        self._kept = kept
        self._way = way
        self._post: Post | None = None
        self._state = kept.state
        self._is_asked = not kept.may_be_old or way is None
        self._process = os.getpid()
        self._is_closed = False
        self.is_unheard = False
        """Whether progress was told that nobody can hear."""

    def progress(self, now: CurrentStep, done: float, total: float | None, note: str) -> None:
        """Tell how far a step is; see `CurrentStep.progress`."""
        news = checked_progress(done, total, note)
        if not self._kept.is_followed or os.getpid() != self._process:
            return
        if self._way is None:
            self.is_unheard = True
        else:
            self._opened(self._way).tell(news)

    def save(self, now: CurrentStep, state: Any, as_type: Any) -> None:
        """Make the partial state of a step durable; see `CurrentStep.save`."""
        if running_loop() is not None:
            raise saved_in_loop(now.path)
        self._save(now, state, as_type)

    async def save_async(self, now: CurrentStep, state: Any, as_type: Any) -> None:
        """Make the partial state of a step durable, in an async step; see `CurrentStep.save_async`."""
        await asyncio.to_thread(self._save, now, state, as_type)

    def load(self, now: CurrentStep, default: Any, as_type: Any) -> Any:
        """Return the partial state of a step."""
        if not self._is_asked:
            self._state = self._asked(now, (LOAD, None))
            self._is_asked = True
        if not self._state:
            return default
        return codec.decode(self._state[0], Any if as_type is None else as_type, place=_place(now))

    def close(self, *, waits: bool = True) -> None:
        """Take nothing more.

        Args:
            waits: until what was handed in has arrived.
        """
        with _opening:
            self._is_closed = True
        if self._post is not None:
            self._post.close(waits=waits)

    def _opened(self, way: WayUp) -> Post:
        """Return the post; most steps need none."""
        if self._post is None:
            with _opening:
                if self._post is None:
                    self._post = Post(way)
                    if self._is_closed:
                        self._post.close()
        return self._post

    def _save(self, now: CurrentStep, state: Any, as_type: Any) -> None:
        if self._way is None:
            raise ExecutorError(
                f"step {now.path!r} cannot save: it runs on executor {self._kept.executor!r}, whose workers have no way "
                "back to the engine while they work; run it on 'process', 'thread' or a Dask cluster",
                executor=self._kept.executor,
                path=now.path,
                remedy="Say so by .on(…) or --executor, or leave save() out.",
            )
        tree = codec.encode(state, Any if as_type is None else as_type, place=_place(now))
        self._asked(now, (SAVE, tree))
        self._state, self._is_asked = (tree,), True

    def _asked(self, now: CurrentStep, question: tuple[str, Any]) -> Any:
        """Return the engine's reply, or raise it."""
        if self._way is None or os.getpid() != self._process:
            raise ExecutorError(
                f"current_step() was asked to {question[0]} in a process that step {now.path!r} has started itself",
                executor=self._kept.executor,
                path=now.path,
                remedy="Save and load in the process that calls the function of the step.",
            )
        try:
            is_done, reply = pickle.loads(self._opened(self._way).ask(pickle.dumps(question)))  # noqa: S301 - from the engine
        except PostClosedError as closed:
            if closed.cause is None:
                raise has_ended(now.path, now.tries) from None
            raise ExecutorError(
                f"step {now.path!r} cannot {question[0]}: the engine cannot be reached from its worker: {closed.cause}",
                executor=self._kept.executor,
                path=now.path,
                remedy="A resume of the run goes on from what was saved before.",
            ) from closed
        if not is_done:
            raise reply
        return reply


def _place(now: CurrentStep) -> str:
    return f"{now.path}: saved state"
