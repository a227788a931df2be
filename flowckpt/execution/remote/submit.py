"""The executor of one run under one name: created when it is needed, and replaced when it is broken."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import functools
import inspect
import logging
import pickle
from collections.abc import Callable, Mapping
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, ThreadPoolExecutor
from functools import partial
from typing import Any, cast

import attrs

from flowckpt.core import codec
from flowckpt.core.codec.annotations import return_annotation
from flowckpt.core.dsl.step import PythonAction
from flowckpt.core.system.blocking import finish_despite_cancel, run_blocking
from flowckpt.errors import (
    ExecutorError,
    FlowckptError,
    NotSendableError,
    StepTimeoutError,
    UnknownExecutorError,
    WorkerDiedError,
)
from flowckpt.evidence.verifier import run_with_limit
from flowckpt.execution.current_step import CurrentStep, StepCall, ended_try_error, mark_of_step, step_baggage
from flowckpt.execution.errors import RemoteError, text_of
from flowckpt.execution.executors.base import (
    HearsWork,
    KnowsStoppedWork,
    LimitsWork,
    LostWorkerError,
    StopsWork,
    TakesResources,
    repeats_work,
)
from flowckpt.execution.interrupts import Interrupts
from flowckpt.execution.python import await_interruptibly, leave_running
from flowckpt.execution.remote.channel import LOAD, PROGRESS, PUBLISH, SAVE, StepSnapshot, read_plain
from flowckpt.execution.remote.task import (
    DONE,
    FAILED,
    ModulePlaces,
    await_value,
    find_module_places,
    pack_task,
    unpack_answer,
    work,
)
from flowckpt.execution.thread import deliver_later

# Ending an executor that a run has created, with all its work.


def kill(executor: Executor) -> None:
    """Shut an executor down at once."""
    own: Any = getattr(executor, "kill", None)
    if callable(own):
        own()
        return
    # of a ProcessPoolExecutor, which has no public access to them
    processes = [*(getattr(executor, "_processes", None) or {}).values()]
    with contextlib.suppress(Exception):  # a broken executor may refuse
        executor.shutdown(wait=False, cancel_futures=True)
    for each in processes:
        with contextlib.suppress(Exception):
            each.kill()


# Messages of a running step in a worker to the engine: its progress and its saves.


_log = logging.getLogger(__name__)

Reply = Callable[[bytes], None]


class WorkerListener:
    """Receives the messages of one try of a step; created in the loop, and called from any thread.

    Args:
        call: the step.
    """

    def __init__(self, call: StepCall) -> None:
        self._call = call
        self._loop = asyncio.get_running_loop()
        self._is_over = False

    def __call__(self, message: bytes, reply: Reply | None) -> None:
        """Take a message of the step.

        Args:
            message: a message sent by `flowckpt.execution.remote.channel`.
            reply: sends the answer; None if no answer is needed.
        """
        try:
            kind, content = read_plain(message)
            if reply is None:
                if kind == PROGRESS and not self._is_over:
                    self._call.services.progress(self._now, *content)
                return
        except Exception as error:  # the engine continues, whatever a worker sends
            _log.warning(
                "run %s: step %s sent an unreadable message: %s", self._call.workflow_id, self._call.path, error
            )
            if reply is not None:
                reply(
                    _pickle_error(
                        FlowckptError(f"the engine cannot read a message of step {self._call.path!r}: {error}")
                    )
                )
            return
        answering = self._answer(kind, content)
        try:
            answer = asyncio.run_coroutine_threadsafe(answering, self._loop)
        except RuntimeError:  # the loop is closed
            answering.close()
            reply(_pickle_error(ended_try_error(self._call.path, self._call.tries)))
            return
        answer.add_done_callback(functools.partial(_reply, reply))

    @property
    def _now(self) -> CurrentStep:
        return CurrentStep.of(self._call)

    def end(self) -> None:
        """Ignore further messages: the run no longer waits for the step."""
        self._is_over = True

    async def _answer(self, kind: str, content: Any) -> Any:
        if self._is_over:
            raise ended_try_error(self._call.path, self._call.tries)
        if kind == SAVE:
            await self._call.services.save_recorded(self._now, content)
            return None
        if kind == PUBLISH:
            self._call.services.publish_recorded(self._now, content)
            return None
        if kind == LOAD:
            return self._call.services.find_state(self._call.path)
        raise FlowckptError(f"a worker sent the unknown request {kind!r:.80}")


def _reply(reply: Reply, answer: Future[Any]) -> None:
    """Send the answer to a question; the outcome of a cancelled save is unknown."""
    with contextlib.suppress(Exception):
        if answer.cancelled():
            reply(_pickle_error(FlowckptError("the run was stopped before the answer")))
        elif (error := answer.exception()) is not None:
            reply(_pickle_error(error))
        else:
            reply(pickle.dumps((True, answer.result())))


def _pickle_error(error: BaseException) -> bytes:
    try:
        return pickle.dumps((False, error))
    except Exception:
        return pickle.dumps((False, FlowckptError(f"{type(error).__name__}: {error}")))


# Steps on threads of an executor in this process: nothing is sent, so nothing need be picklable.


_INTERPRETERS: Any = getattr(concurrent.futures, "InterpreterPoolExecutor", ())
"""An executor whose threads have separate interpreters (Python 3.14), which share no objects."""


@attrs.frozen
class LocalOutcome:
    """How a call ended.

    Attributes:
        output: the returned value.
        error: the raised exception, or None.
    """

    output: Any = None
    error: BaseException | None = None

    def value(self) -> Any:
        """Return the output, or raise the error."""
        if self.error is not None:
            raise self.error
        return self.output


def is_in_this_process(executor: Executor) -> bool:
    """Return whether an executor calls functions in this process, with the same objects."""
    return isinstance(executor, ThreadPoolExecutor) and not (_INTERPRETERS and isinstance(executor, _INTERPRETERS))


def submit_here(executor: Executor, action: PythonAction) -> Future[Any]:
    """Have a function called on a thread of this process, in the context of the caller."""
    return executor.submit(contextvars.copy_context().run, _call_here, action)


def _call_here(action: PythonAction) -> LocalOutcome:
    try:
        value = action.function(*action.args, **action.kwargs)
        return LocalOutcome(asyncio.run(await_value(value)) if inspect.isawaitable(value) else value)
    except BaseException as error:
        return LocalOutcome(error=error)


def _stop(future: Future[Any], executor: Any, call: StepCall) -> bool:
    """Stop the work of a future; return whether the future ends soon."""
    leave = partial(leave_running, call.workflow_id, call.path)
    if isinstance(executor, StopsWork):
        executor.stop(future)
        if isinstance(executor, KnowsStoppedWork):
            leave(lambda: executor.is_at_work(future))
        return True
    future.cancel()
    if not future.done():
        leave(lambda: not future.done())
    return False  # running work cannot be stopped, and is abandoned


async def await_answer(future: Future[Any], executor: Any, call: StepCall, interrupts: Interrupts) -> Any:
    """Wait for a future; after a timeout or a cancel, stop its work if the executor can.

    Work that ended by itself counts as ended, even if a cancel arrived a moment later.

    Args:
        future: the future of the work.
        executor: stops the work, if it can.
        call: the step.
        interrupts: the signals.

    Raises:
        StepTimeoutError: the work did not end in time.
        asyncio.CancelledError: the wait was cancelled.
        Exception: the error that the executor reports for the work.
    """
    timeout_seconds = call.modifiers.timeout_seconds
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    is_late = False

    def on_done(_: Future[Any]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(ended.set)

    def stop() -> None:
        if not _stop(future, executor, call):
            ended.set()

    def time_is_over() -> None:
        nonlocal is_late
        if not future.done():
            is_late = True
            stop()

    future.add_done_callback(on_done)
    timer = None if timeout_seconds is None else loop.call_later(timeout_seconds, time_is_over)
    cancels: list[asyncio.CancelledError] = []
    try:
        while not ended.is_set():
            try:
                await ended.wait()
            except asyncio.CancelledError as cancel:
                cancels.append(cancel)
                stop()
    except BaseException:  # a second signal, or the loop is closed: awaiting is no longer possible
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
        raise StepTimeoutError(call.path, timeout_seconds=timeout_seconds)
    if cancels:
        deliver_later(len(cancels), interrupts)
    return future.result(timeout=0)


_CONNECT_SECONDS = 180.0


class RunExecutor:
    """An executor of one run.

    Args:
        name: the name that steps use for it.
        make: creates it.
        is_ours: whether the run created it, so that the run also ends it, and replaces it if it is broken.
        kind: the executor or its class, as far as known before it is created.
    """

    def __init__(self, name: str, make: Callable[[], Executor], *, is_ours: bool, kind: object = None) -> None:
        self.name = name
        self._kind = kind
        self._make = make
        self._is_ours = is_ours
        self._executor: Executor | None = None
        self._opening = asyncio.Lock()
        self._connecting: Executor | None = None
        self._room: asyncio.Semaphore | None = None
        self._modules: ModulePlaces = {}
        self._has_warned = False

    async def run_function(self, action: PythonAction, call: StepCall, interrupts: Interrupts) -> Any:
        """Run a function on the executor and return its encoded output; its time limit counts from its start.

        Args:
            action: the function and its arguments.
            call: the step.
            interrupts: the signals.

        Raises:
            NotSendableError: the function or an argument cannot be sent.
            WorkerDiedError: the process that ran the function is gone.
            ExecutorError: the executor cannot be created or reached, or cannot run the function.
            StepTimeoutError: the function did not end in time.
            RemoteError: the exception of the function.
        """
        answer = await await_interruptibly(self._answer(action, call, interrupts), interrupts)
        if isinstance(answer, LocalOutcome):
            return codec.encode(answer.value(), return_annotation(action.function), place=f"{call.path}: output")
        try:
            kind, content, is_unheard, figures, published = unpack_answer(answer)
        except (pickle.UnpicklingError, ValueError, TypeError, EOFError) as error:
            raise self._error(
                call.path,
                f"returned something else than its function did for step {call.path!r}: {text_of(error)[:200]}",
                "An executor calls what it is given with the arguments that it is given, and returns its result.",
            ) from error
        if is_unheard:
            self._warn_unheard(call)
        if figures:
            call.services.record(CurrentStep.of(call), figures)
        if published:
            call.services.publish_recorded(CurrentStep.of(call), published)
        if kind == DONE:
            return content
        if kind == FAILED:
            recorded, is_exception, delay, is_wanted = content
            raise RemoteError(recorded, is_exception=is_exception, retry_after=delay, is_wanted=is_wanted)
        raise NotSendableError(
            call.path,
            executor=self.name,
            place="what it is called with",
            type_name=action.function_name,
            detail=f"the worker cannot read it: {content[0]}: {content[1]}",
            remedy="The worker must be able to import what the function and its arguments are made of.",
        )

    def _warn_unheard(self, call: StepCall) -> None:
        if not self._has_warned:
            self._has_warned = True
            _log.warning(
                "run %s: step %s reported progress, but executor %r cannot send messages while a step runs",
                call.workflow_id,
                call.path,
                self.name,
            )

    async def refuse_repeats(self, path: str) -> None:
        """Refuse an at-most-once step if the executor may repeat work by itself.

        Raises:
            UnknownExecutorError: the executor may repeat work.
            ExecutorError: the executor cannot be created.
        """
        if repeats_work(self._kind) or repeats_work(await self._open(path)):
            raise self.refusal(
                path, f"is .at_most_once(), and executor {self.name!r} may run a step again when it loses a worker"
            )

    async def refuse_resources(self, path: str, resources: Mapping[str, float]) -> None:
        """Refuse a step that asks for resources if the executor does not support resources.

        Raises:
            UnknownExecutorError: the executor does not support resources.
        """
        try:
            executor = await self._open(path)
        except ExecutorError:
            return  # the tries of the step report the error
        if not isinstance(executor, TakesResources):
            raise self.refusal(
                path, f"asks for resources {dict(resources)}, which executor {self.name!r} does not have"
            )

    async def close(self) -> None:
        """End the executor, if the run has created it."""
        executor = self._detach()
        if executor is not None:
            await finish_despite_cancel(run_blocking(lambda: kill(executor)))

    def kill(self) -> None:
        """End the executor at once, if the run has created it."""
        executor = self._detach()
        if executor is not None:
            kill(executor)

    def _detach(self) -> Executor | None:
        """Release the executor, even if it is not connected yet; return it if it has to be ended."""
        executor = self._executor or self._connecting
        self._executor = self._connecting = None
        return executor if self._is_ours else None

    @property
    def may_try_again(self) -> bool:
        """Whether a step without `.retry()` may be tried again if its worker is lost."""
        return repeats_work(self._kind) or repeats_work(self._executor)

    @property
    def leaves_work(self) -> bool:
        """Whether a step may keep running after its timeout."""
        return not getattr(self._executor, "kills_work", False)

    @property
    def tries_when_lost(self) -> int:
        """How often a step without `.retry()` is tried if its worker is lost."""
        return int(getattr(self._executor, "tries_when_lost", 1))

    async def _answer(self, action: PythonAction, call: StepCall, interrupts: Interrupts) -> Any:
        path = call.path
        executor = await self._open(path)
        if is_in_this_process(executor):
            parcel: bytes | PythonAction = action
        else:
            by_value = not getattr(executor, "imports_program", False)
            parcel = pack_task(action, call, self._take_snapshot(executor, call), self._modules, by_value=by_value)
        if self._room is None:
            return await self._submit(executor, parcel, call, interrupts)
        async with self._room:
            executor = await self._open(path)  # other steps may have found it broken meanwhile
            return await self._submit(executor, parcel, call, interrupts)

    def _take_snapshot(self, executor: Executor, call: StepCall) -> StepSnapshot:
        retry, services = call.modifiers.retry, call.services
        most_tries = 1 if retry is None else retry.attempts
        baggage, state = step_baggage.get(), services.find_state(call.path)
        parcel = b"" if baggage is None else baggage.parcel
        mark = mark_of_step(services.birth, call.path)
        return StepSnapshot(self.name, most_tries, services.is_followed, state, repeats_work(executor), parcel, mark)

    async def _submit(
        self, executor: Executor, parcel: bytes | PythonAction, call: StepCall, interrupts: Interrupts
    ) -> Any:
        path, placement, listener = call.path, call.modifiers.placement, WorkerListener(call)
        resources = {} if placement is None else placement.resources
        try:
            future: Future[Any]
            if isinstance(parcel, PythonAction):
                future = submit_here(executor, parcel)
            elif resources and not isinstance(executor, TakesResources):
                raise self.refusal(path, f"asks for resources {dict(resources)}, which its executor does not know")
            elif callable(getattr(executor, "submit_heard", None)):  # an `isinstance` takes ten times as long
                future = cast("HearsWork", executor).submit_heard(listener, resources, work, parcel)
            elif resources:
                future = cast("TakesResources", executor).submit_with(resources, work, parcel)
            else:
                future = executor.submit(work, parcel)
            return await await_answer(future, executor, call, interrupts)
        except LostWorkerError as error:
            raise WorkerDiedError(path, executor=self.name, detail=str(error), exit_code=error.exit_code) from error
        except BrokenExecutor as error:
            raise self._release_broken(executor, path, error) from error
        except CancelledError as error:
            raise WorkerDiedError(path, executor=self.name, detail="the executor cancelled it") from error
        except ExecutorError as error:
            error.executor, error.path = self.name, path
            raise
        except (TimeoutError, asyncio.CancelledError):
            raise
        except Exception as error:
            if isinstance(error, tuple(getattr(executor, "lost_worker_errors", ()))):
                raise WorkerDiedError(path, executor=self.name, detail=_format_error(error)) from error
            raise self._error(
                path,
                f"could not run step {path!r}: {type(error).__name__}: {text_of(error)[:500]}",
                "Its workers need the same flowckpt as the engine, and the packages of the step's function.",
            ) from error
        finally:
            listener.end()

    def _release_broken(self, executor: Executor, path: str, error: BrokenExecutor) -> WorkerDiedError:
        """Release an executor that is permanently broken; the next step gets a new one, if it can be created."""
        if not self._is_ours:
            return WorkerDiedError(
                path,
                executor=self.name,
                detail=_format_error(error),
                remedy="The executor is permanently broken. Give the engine a function that creates one, and it creates a new "
                "one: executors={…: lambda: ProcessPoolExecutor(4)}; or use 'process', which loses only the one step.",
            )
        if self._executor is executor:
            self._executor = None
            kill(executor)
        return WorkerDiedError(path, executor=self.name, detail=_format_error(error))

    async def _open(self, path: str) -> Executor:
        if self._executor is None:
            async with self._opening:
                if self._executor is None:
                    self._modules = find_module_places()
                    self._executor = await self._make_executor(path)
                    limit = self._executor.max_workers if isinstance(self._executor, LimitsWork) else None
                    if limit is not None and self._room is None:
                        self._room = asyncio.Semaphore(limit)
        return self._executor

    async def _make_executor(self, path: str) -> Executor:
        try:
            executor = self._make()
            connect: Callable[[], None] | None = getattr(executor, "connect", None)
            if connect is not None:
                self._connecting = executor
                await run_with_limit(connect, _CONNECT_SECONDS)  # neither a cancel nor the program's exit waits for it
        except ExecutorError as error:
            error.executor, error.path = self.name, path
            raise
        except Exception as error:
            raise self._error(
                path,
                f"cannot be made: {type(error).__name__}: {text_of(error)}",
                "Check the function that creates it.",
            ) from error
        if not callable(getattr(executor, "submit", None)):
            raise self._error(
                path, f"cannot be used: its function returned {executor!r:.80}", "Return a concurrent.futures.Executor."
            )
        return executor

    def _error(self, path: str, message: str, remedy: str) -> ExecutorError:
        return ExecutorError(f"executor {self.name!r} {message}", executor=self.name, path=path, remedy=remedy)

    def refusal(self, path: str, why: str) -> UnknownExecutorError:
        """Return the error of a step that cannot run on this executor."""
        return UnknownExecutorError(
            f"step {path!r} {why}", executor=self.name, path=path, remedy="Choose another executor with .on(…)."
        )


def _format_error(error: BaseException) -> str:
    """Return the text of an error, in one line."""
    return f"{type(error).__name__}: {next(iter(text_of(error).splitlines()), '')[:300]}"
