"""Ctrl-C, SIGTERM and SIGHUP: they reach the step that runs, and nothing else of the engine.

A signal in the middle of user code is raised there, as Python's own Ctrl-C is. A signal anywhere else (between steps,
in a save) only leaves a note, which the engine reads once the step's result is safe: a ten-minute step that has just
ended is never lost to the key that was pressed a moment later. A second signal stops at once, wherever it comes.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from asyncio.events import _set_running_loop
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import CodeType, FrameType, FunctionType
from typing import Any, Self

from flowckpt.core.system.blocking import swap_loop, swap_task
from flowckpt.errors import FencedError

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_FIRST = getattr(signal, "SIGRTMIN", 0)
CANCEL_SIGNALS: Mapping[bool, int] = {True: _FIRST + 7, False: _FIRST + 8} if _FIRST else {}
"""The signals that `flowckpt cancel` sends to the owner of a run: with and without undoing its steps."""
CANCEL = "cancel"
"""Noted in the place of a signal's name, where a run is cancelled by request."""
LOST = "the loss of its run"
"""Noted in the place of a signal's name, where another process has taken the run over."""
_LOST_SIGNAL = getattr(signal, "SIGURG", None)
"""The signal with which a thread wakes the main thread out of a system call; it has no effect without a handler."""


class RunInterrupted(KeyboardInterrupt):
    """A signal stopped the run, after everything was saved.

    Raised by `run_sync` and `resume_sync` after Ctrl-C, SIGTERM or SIGHUP.

    Attributes:
        signal_name: `SIGINT`, `SIGTERM` or `SIGHUP`.
        result: the run's result, with the status `suspended`.
    """

    def __init__(self, signal_name: str) -> None:
        super().__init__(f"stopped by {signal_name}")
        self.signal_name = signal_name
        self.result: Any = None


class Interrupts:
    """The signals of one run; a context manager that installs its handlers and restores the former ones.

    Only the main thread of a program can have handlers; elsewhere this does nothing.
    """

    def __init__(self) -> None:
        self.noted: str = ""
        """The name of the signal that came, or an empty string."""
        self._is_user_code = False
        self._former: dict[int, Any] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        self.result: Any = None
        """How the run ended, once it has; for a signal that comes too late to stop it."""
        self.is_alone: Callable[[], bool] = lambda: True
        """Tells whether the process drives no other run, so that a signal to cancel can only mean this one."""
        self.cancel_rolls_back = True
        """After a requested cancel: whether the steps are to be undone."""
        self.is_in_place = False
        """Whether user code runs in the thread of the loop, which stands still meanwhile."""
        self._thread = threading.get_ident()
        self.waits = 0
        """For how many things the engine waits in the loop that a cancel may end."""
        self.fence: FencedError | None = None
        """The error that a save would raise, once the run is known to have a new owner."""
        self._is_stopped_by_loss = False

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                former = signal.getsignal(number)
                if former in (signal.default_int_handler, signal.SIG_DFL):
                    self._former[number] = former
                    signal.signal(number, self._handle)
            for asking in CANCEL_SIGNALS.values():
                if signal.getsignal(asking) in (_too_late, signal.SIG_DFL):
                    self._former[asking] = _too_late  # one that comes when the run has ended must not end the program
                    signal.signal(asking, self._handle)
            if _LOST_SIGNAL is not None and signal.getsignal(_LOST_SIGNAL) is signal.SIG_DFL:
                self._former[_LOST_SIGNAL] = signal.SIG_DFL
                signal.signal(_LOST_SIGNAL, self._handle_loss)
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        for number, former in self._former.items():
            signal.signal(number, former)
        self._former.clear()
        self._raise_unheard(error)

    def watch(self, task: asyncio.Task[Any] | None) -> None:
        """Name the task to be cancelled when a signal comes while it waits in the loop."""
        self._task = task
        self._loop = task.get_loop() if task else None
        self._thread = threading.get_ident()

    def call(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call user code in this thread, where a signal may reach it, and where it sees no event loop."""
        loop, task = self._loop, None
        self._is_user_code = self.is_in_place = True
        try:
            # The engine's loop stands still meanwhile. A step that sees it cannot call `asyncio.run`, nor any library that
            # asks whether a loop runs. No call with a frame of its own may hide it: a signal there would be the step's.
            if swap_task is not None and loop is not None:
                task = swap_task(loop, None)
            _set_running_loop(None)
            # A function written in C has no frame by which the signal's handler could tell it from the engine around it.
            return function(*args, **kwargs) if type(function) is FunctionType else _called(function, args, kwargs)
        finally:
            _set_running_loop(loop)
            if swap_task is not None and loop is not None:
                swap_task(loop, task)
            self._is_user_code = self.is_in_place = False

    @contextmanager
    def held_back(self) -> Iterator[None]:
        """Hold signals back while user code has called the engine; a signal that comes is raised afterwards.

        Raises:
            RunInterrupted: a signal came meanwhile.
        """
        if not self._is_user_code or threading.get_ident() != self._thread:
            yield
            return
        before = self.noted
        self._is_user_code = False
        seen = swap_loop(self._loop, self._task)
        try:
            yield
        finally:
            swap_loop(*seen)
            self._is_user_code = True
        if self.noted != before:
            raise RunInterrupted(self.noted)

    def _raise_unheard(self, error: BaseException | None) -> None:
        """Raise a signal that came when no step was left to stop: the program must hear of it all the same."""
        if self.noted not in ("", CANCEL, LOST) and error is None:
            stop = RunInterrupted(self.noted)
            stop.result = self.result
            raise stop

    def raise_noted(self, task: asyncio.Task[Any] | None) -> None:
        """Raise what was noted, if anything.

        Raises:
            RunInterrupted: a signal came.
            asyncio.CancelledError: a signal came, and it is not the run's own task that asks: from another one, what is
                no `Exception` would end the loop at once.
        """
        if self.noted:
            if task is not self._task and self._task is not None:
                raise asyncio.CancelledError
            raise RunInterrupted(self.noted)

    def cause_of(self, error: BaseException) -> BaseException:
        """Return the cause of an error: the signal that cancelled a wait, or the loss of the run."""
        cause = self._signal_behind(error)
        return cause if self.fence is None else self.fence

    def _signal_behind(self, error: BaseException) -> BaseException:
        if isinstance(error, asyncio.CancelledError) and self.noted and self._task is not None:
            self._task.uncancel()
            return RunInterrupted(self.noted)
        if type(error) is KeyboardInterrupt:  # Python's own, where no handler of ours is installed, or a step's
            return RunInterrupted("SIGINT").with_traceback(error.__traceback__)
        return error

    def request_cancel(self, *, rolls_back: bool) -> None:
        """Stop the run from within its own process, at the next step or in what is waited for."""
        if not self.noted:
            self.noted, self.cancel_rolls_back = CANCEL, rolls_back
            if self._loop is not None and self._task is not None:
                self._loop.call_soon_threadsafe(self._cancel_wait)

    def lose(self, error: FencedError) -> None:
        """Stop the run as a signal does, because it is another's now; may be called from any thread, and again.

        Where a function runs in the thread of the loop, and that is not the main one, nothing reaches it: the run stops
        behind it.
        """
        self.fence = self.fence or error
        self.noted = self.noted or LOST
        if self._is_stopped_by_loss:
            return
        if _LOST_SIGNAL is not None and _LOST_SIGNAL in self._former:
            signal.pthread_kill(threading.main_thread().ident or 0, _LOST_SIGNAL)
        loop = self._loop  # which the end of the run takes away, in its own thread
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # it is closed: the run has ended
                loop.call_soon_threadsafe(self._cancel_lost_wait)

    def _cancel_lost_wait(self) -> None:
        if self.waits and not self._is_stopped_by_loss:
            self._is_stopped_by_loss = True
            self._cancel_wait()

    def _handle_loss(self, number: int, frame: FrameType | None) -> None:
        is_in_step = self._is_user_code and not (frame is not None and frame.f_code is _CALL)
        if self.fence is not None and is_in_step and not self._is_stopped_by_loss:
            self._is_stopped_by_loss = True  # what it does to end is not to be disturbed by the next look
            raise RunInterrupted(LOST)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number in CANCEL_SIGNALS.values():
            # Stopping already, it needs no second word. Among several runs it is not known here which one is meant: the request
            # in the store says that, at their next steps.
            if self.noted or not self.is_alone():
                return
            name, self.cancel_rolls_back = CANCEL, number == CANCEL_SIGNALS[True]
        else:
            name = signal.Signals(number).name
        if self.noted:  # the second one: no more patience
            raise RunInterrupted(name)
        self.noted = name
        # Between the last bytecode of the step and our own `finally`, the step has ended: only note it.
        if self._is_user_code and not (frame is not None and frame.f_code is _CALL):
            raise RunInterrupted(name)
        if self.waits and self._loop is not None and self._task is not None:
            self._loop.call_soon_threadsafe(self._cancel_wait)

    def _cancel_wait(self) -> None:
        """Cancel what the engine waits for; where the wait has ended meanwhile, a save may have begun: leave it."""
        if self.waits and self._task is not None:
            self._task.cancel()


def _too_late(number: int, frame: FrameType | None) -> None:
    """Do nothing: the run that was to be cancelled has ended."""


def _called(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Call user code in a frame of its own."""
    return function(*args, **kwargs)


_CALL: CodeType = Interrupts.call.__code__
