"""Ctrl-C, SIGTERM and SIGHUP: they interrupt the running step, but not the engine's own work.

A signal during user code is raised there, like Python's own Ctrl-C. A signal at any other time (between steps, during a
save) is only noted, and the engine reads the note once the step's result is safe: a ten-minute step that has just ended
is never lost because of a key pressed a moment later. A second signal stops at once, at any time.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from asyncio.events import _set_running_loop
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import CodeType, FrameType, FunctionType
from typing import Any, Self

from flowckpt.core.system.blocking import swap_loop, swap_task
from flowckpt.errors import FencedError

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_FIRST = getattr(signal, "SIGRTMIN", 0)
CANCEL_SIGNALS: Mapping[bool, int] = {True: _FIRST + 7, False: _FIRST + 8} if _FIRST else {}
"""The signals that `flowckpt cancel` sends to the owner of a run: with and without undoing its steps."""
CANCEL = "cancel"
"""Noted instead of a signal's name if the run is cancelled by request."""
LOST = "the loss of its run"
"""Noted instead of a signal's name if another process has taken the run over."""
_LOST_SIGNAL = getattr(signal, "SIGURG", None)
"""The signal with which a thread interrupts a system call of the main thread; without a handler it has no effect."""


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
    """The signals of one run; a context manager that installs signal handlers and restores the previous ones.

    Handlers are only possible in the main thread; in another thread this does nothing.
    """

    def __init__(self) -> None:
        self.pending_signal: str = ""
        """The name of the received signal, or an empty string."""
        self._is_user_code = False
        self._previous_handlers: dict[int, Any] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        self.result: Any = None
        """The result of the run once it has ended, for a signal that arrives too late to stop it."""
        self.is_alone: Callable[[], bool] = lambda: True
        """Returns whether the process drives only this run, so that a signal to cancel can only mean this one."""
        self.cancel_rolls_back = True
        """After a requested cancel: whether to undo the steps."""
        self.is_in_place = False
        """Whether user code runs in the loop's thread, so that the loop stands still."""
        self._thread = threading.get_ident()
        self._process = os.getpid()
        self.waits = 0
        """How many waits of the engine in the loop may be cancelled."""
        self.fence: FencedError | None = None
        """The error that a save would raise, once the run is known to have a new owner."""
        self._is_stopped_by_loss = False

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in STOP_SIGNALS:
                former = signal.getsignal(number)
                if former in (signal.default_int_handler, signal.SIG_DFL):
                    self._previous_handlers[number] = former
                    signal.signal(number, self._handle)
            for asking in CANCEL_SIGNALS.values():
                if signal.getsignal(asking) in (_ignore_late_signal, signal.SIG_DFL):
                    self._previous_handlers[asking] = (
                        _ignore_late_signal  # a signal after the end of the run must not end the program
                    )
                    signal.signal(asking, self._handle)
            if _LOST_SIGNAL is not None and signal.getsignal(_LOST_SIGNAL) is signal.SIG_DFL:
                self._previous_handlers[_LOST_SIGNAL] = signal.SIG_DFL
                signal.signal(_LOST_SIGNAL, self._handle_loss)
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        for number, former in self._previous_handlers.items():
            signal.signal(number, former)
        self._previous_handlers.clear()
        self._raise_late_signal(error)

    def watch(self, task: asyncio.Task[Any] | None) -> None:
        """Set the task to cancel if a signal arrives while it waits in the loop."""
        self._task = task
        self._loop = task.get_loop() if task else None
        self._thread = threading.get_ident()

    def call(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call user code in this thread, where signals can interrupt it, and hide the event loop from it."""
        loop, task = self._loop, None
        self._is_user_code = self.is_in_place = True
        try:
            # The engine's loop stands still meanwhile. If a step saw it, it could not call `asyncio.run`, nor a library
            # that checks for a running loop. Hide it without another Python frame: a signal there would count as the
            # step's.
            if swap_task is not None and loop is not None:
                task = swap_task(loop, None)
            _set_running_loop(None)
            # A function written in C has no frame that would distinguish it from the engine in the signal handler.
            return (
                function(*args, **kwargs) if type(function) is FunctionType else _call_in_frame(function, args, kwargs)
            )
        finally:
            _set_running_loop(loop)
            if swap_task is not None and loop is not None:
                swap_task(loop, task)
            self._is_user_code = self.is_in_place = False

    @contextmanager
    def defer_signals(self) -> Iterator[None]:
        """Defer signals while user code calls the engine; a signal that arrives is raised afterwards.

        Raises:
            RunInterrupted: a signal arrived meanwhile.
        """
        if not self._is_user_code or threading.get_ident() != self._thread:
            yield
            return
        before = self.pending_signal
        self._is_user_code = False
        seen = swap_loop(self._loop, self._task)
        try:
            yield
        finally:
            swap_loop(*seen)
            self._is_user_code = True
        if self.pending_signal != before:
            raise RunInterrupted(self.pending_signal)

    def _raise_late_signal(self, error: BaseException | None) -> None:
        """Raise a signal that arrived after the last step: the program must still get it."""
        if self.pending_signal not in ("", CANCEL, LOST) and error is None:
            stop = RunInterrupted(self.pending_signal)
            stop.result = self.result
            raise stop

    def raise_pending(self, task: asyncio.Task[Any] | None) -> None:
        """Raise the noted signal, if any.

        Raises:
            RunInterrupted: a signal arrived.
            asyncio.CancelledError: a signal arrived, and the caller is not the run's own task: in another task, an
            exception
                that is not an `Exception` would end the loop at once.
        """
        if self.pending_signal:
            if task is not self._task and self._task is not None:
                raise asyncio.CancelledError
            raise RunInterrupted(self.pending_signal)

    def find_cause(self, error: BaseException) -> BaseException:
        """Return the cause of an error: the signal that cancelled a wait, or the loss of the run."""
        cause = error
        if isinstance(error, asyncio.CancelledError) and self.pending_signal and self._task is not None:
            self._task.uncancel()
            cause = RunInterrupted(self.pending_signal)
        elif type(error) is KeyboardInterrupt:  # Python's own, if flowckpt has no handler, or one raised by a step
            cause = RunInterrupted("SIGINT").with_traceback(error.__traceback__)
        return self.fence or cause

    def request_cancel(self, *, rolls_back: bool) -> None:
        """Stop the run from within its own process, at the next step or during a wait."""
        if not self.pending_signal:
            self.pending_signal, self.cancel_rolls_back = CANCEL, rolls_back
            if self._loop is not None and self._task is not None:
                self._loop.call_soon_threadsafe(self._cancel_wait)

    def lose(self, error: FencedError) -> None:
        """Stop the run like a signal, because it has a new owner; may be called from any thread, and repeatedly.

        A function that runs in the loop's thread cannot be interrupted unless that is the main thread: then the run
        stops after the function.
        """
        self.fence = self.fence or error
        self.pending_signal = self.pending_signal or LOST
        if self._is_stopped_by_loss:
            return
        if _LOST_SIGNAL is not None and _LOST_SIGNAL in self._previous_handlers:
            signal.pthread_kill(threading.main_thread().ident or 0, _LOST_SIGNAL)
        loop = self._loop  # read once: the run's end sets it to None in another thread
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the run has ended
                loop.call_soon_threadsafe(self._cancel_lost_wait)

    def _cancel_lost_wait(self) -> None:
        if self.waits and not self._is_stopped_by_loss:
            self._is_stopped_by_loss = True
            self._cancel_wait()

    def _handle_loss(self, number: int, frame: FrameType | None) -> None:
        is_in_step = self._is_user_code and not (frame is not None and frame.f_code is _CALL)
        if self.fence is not None and is_in_step and not self._is_stopped_by_loss:
            self._is_stopped_by_loss = True  # so that the next check does not interrupt its `finally` blocks
            raise RunInterrupted(LOST)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:  # forked by a step, such as a worker of a pool: the signal is not for the run
            signal.signal(number, self._previous_handlers.get(number, signal.SIG_DFL))
            signal.raise_signal(number)
            return
        if number in CANCEL_SIGNALS.values():
            # The run is already stopping, or the process drives several runs, and it is unknown which one is meant:
            # then the request in the store decides, at their next steps.
            if self.pending_signal or not self.is_alone():
                return
            name, self.cancel_rolls_back = CANCEL, number == CANCEL_SIGNALS[True]
        else:
            name = signal.Signals(number).name
        if self.pending_signal:  # the second signal: stop at once
            raise RunInterrupted(name)
        self.pending_signal = name
        # Between the last bytecode of the step and the engine's own `finally`, the step has ended: only note the
        # signal.
        if self._is_user_code and not (frame is not None and frame.f_code is _CALL):
            raise RunInterrupted(name)
        if self.waits and self._loop is not None and self._task is not None:
            self._loop.call_soon_threadsafe(self._cancel_wait)

    def _cancel_wait(self) -> None:
        """Cancel the engine's wait; if the wait has ended meanwhile, a save may be in progress, so do nothing."""
        if self.waits and self._task is not None:
            self._task.cancel()


def _ignore_late_signal(number: int, frame: FrameType | None) -> None:
    """Do nothing: the run has already ended."""


def _call_in_frame(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Call user code in its own frame."""
    return function(*args, **kwargs)


_CALL: CodeType = Interrupts.call.__code__
