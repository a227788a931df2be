"""What steps save of themselves while they run: through the one write primitive, a checkpoint of the run."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

from flowckpt import codec
from flowckpt.blocking import blocking_allowed, finish_despite_cancel
from flowckpt.checkpoint import PartialState, Reason
from flowckpt.codec.blob import Recorded, pack
from flowckpt.codec.results import plain_tree
from flowckpt.engine.in_place import driven
from flowckpt.errors import EncodingError, FlowckptError
from flowckpt.execution import redaction
from flowckpt.execution.handing_in import has_ended, running_loop, saved_in_loop

if TYPE_CHECKING:
    from flowckpt.engine.attempt import Attempt
    from flowckpt.execution.current_step import CurrentStep


class PartialSaves:
    """Saves and loads the partial states of the steps of one attempt.

    Args:
        attempt: the attempt; its checkpointer holds the states that are part of each checkpoint.
    """

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._lock = threading.Lock()  # a step in place may save from several threads
        self._is_closed = False
        self._failure: BaseException | None = None
        self._saving: set[asyncio.Task[None]] = set()
        self._telling: set[asyncio.Task[None]] = set()

    def save(self, now: CurrentStep, state: Any, as_type: Any) -> None:
        """Save from a thread: the step's own, or one that it has made.

        Args:
            now: the step.
            state: what to save.
            as_type: the type by which it is written, or None.

        Raises:
            EncodingError: it cannot be recorded.
            FlowckptError: it cannot be saved, or not from here.
        """
        self._check(now)
        partial = self._packed(now, state, as_type)
        attempt = self._attempt
        if attempt.interrupts.is_in_place:
            with self._lock, attempt.interrupts.held_back():
                self._check(now)
                if not attempt.interrupts.is_in_place:
                    raise has_ended(now.path, now.tries)  # meanwhile: the step has not waited for this thread
                driven(self._saved(now, partial, is_told_here=True))
            return
        loop = attempt.loop
        if loop is None or loop.is_closed():
            raise has_ended(now.path, now.tries)
        if loop is running_loop():
            raise saved_in_loop(now.path)
        asyncio.run_coroutine_threadsafe(self._saved_for_thread(now, partial), loop).result()

    async def save_async(self, now: CurrentStep, state: Any, as_type: Any) -> None:
        """Save from code that runs in the loop; see `save`."""
        self._check(now)
        partial = self._packed(now, state, as_type)
        if self._attempt.loop is not asyncio.get_running_loop():  # a loop that the step runs by itself
            await asyncio.to_thread(self.save, now, state, as_type)
            return
        await self._saved(now, partial, is_told_here=True)

    async def save_recorded(self, now: CurrentStep, tree: Any) -> None:
        """Save what a worker has put into the form of the record; see `save`.

        Args:
            now: the step.
            tree: the state.
        """
        self._check(now)
        await self._saved_for_thread(now, self._recorded(now, tree))

    async def _saved_for_thread(self, now: CurrentStep, partial: PartialState) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._saving.add(task)
        try:
            self._check(now)
            with blocking_allowed(False):
                await self._saved(now, partial, is_told_here=False)
        finally:
            self._saving.discard(task)

    async def _saved(self, now: CurrentStep, partial: PartialState, *, is_told_here: bool) -> None:
        attempt = self._attempt
        held = attempt.checkpointer.partial
        before = held.get(now.path)
        held[now.path] = partial
        try:
            saved = await attempt.save(Reason.MANUAL)
        except EncodingError:  # refused before anything was written: the step may go on without
            if before is None:
                held.pop(now.path, None)
            else:
                held[now.path] = before
            raise
        except Exception as failure:
            self._failure = failure
            raise
        if is_told_here:
            await attempt.tell_saved(saved)
        elif attempt.tell is not None:  # the thread waits for the disk, and not for whoever listens
            telling = asyncio.ensure_future(attempt.tell_saved(saved))
            self._telling.add(telling)
            telling.add_done_callback(self._telling.discard)

    def load(self, path: str, default: Any, as_type: Any) -> Any:
        """Return what a step saved last.

        Args:
            path: the step.
            default: what to return where it has saved nothing.
            as_type: the type to build of it, or None.

        Raises:
            DecodingError: what was saved does not fit the type.
        """
        held = self.held(path)
        if not held:
            return default
        return codec.decode(held[0], Any if as_type is None else as_type, place=_place(path))

    def held(self, path: str) -> tuple[Any, ...]:
        """Return what a step saved last, as it is recorded; nothing where it has saved nothing.

        Args:
            path: the step.
        """
        partial = self._attempt.checkpointer.partial.get(path)
        return () if partial is None else (plain_tree(partial.held_state, _place(path)),)

    async def settle(self) -> None:
        """Wait for what is under way.

        Raises:
            FlowckptError: a save failed.
        """
        with self._lock:  # a thread of the step's own, which the step has not waited for
            pass
        if self._telling:
            await asyncio.gather(*self._telling)
        if self._failure is not None:
            raise self._failure

    async def close(self) -> None:
        """Take no more saves, and wait for those that were begun: the end of the run is saved behind them."""
        self._is_closed = True
        with self._lock:
            pass
        while self._saving:
            await finish_despite_cancel(asyncio.wait({*self._saving}))  # they end meanwhile
        for each in self._telling:
            each.cancel()
        if self._telling:
            await asyncio.wait({*self._telling})

    def _check(self, now: CurrentStep) -> None:
        if now._step is not None and now._step.modifiers.is_ephemeral:
            raise FlowckptError(
                f"step {now.path!r} is .ephemeral() and cannot save anything of itself",
                remedy="It is never recorded, and run again at each replay.",
            )
        attempt = self._attempt
        if self._is_closed or now.path not in attempt.in_flight or attempt.tries.get(now.path, 1) != now.tries:
            raise has_ended(now.path, now.tries)

    def _packed(self, now: CurrentStep, state: Any, as_type: Any) -> PartialState:
        """Return the state as the record holds it; what the step does to the object afterwards changes nothing."""
        return self._recorded(now, codec.encode(state, Any if as_type is None else as_type, place=_place(now.path)))

    def _recorded(self, now: CurrentStep, tree: Any) -> PartialState:
        if self._attempt.secrets.is_any:
            redaction.refuse_secrets(tree, self._attempt.secrets, _place(now.path))
        blob = pack(tree)[1]
        step = now._step
        assert step is not None
        return PartialState(
            Recorded(tree) if blob is None else blob,
            step.action.function_name,
            now._code,
            now._arguments,
            step.modifiers.version,
        )


def _place(path: str) -> str:
    return f"{path}: saved state"
