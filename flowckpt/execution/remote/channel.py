"""The services of a step in a worker: its reports and saves are sent to the engine.

If the executor has a connection to the engine, the engine's services get the messages. Without one, the step only has
its identity and its last saved state; what cannot be made durable is refused.
"""

from __future__ import annotations

import asyncio
import io
import os
import pickle
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from flowckpt.errors import ExecutorError
from flowckpt.execution.current_step import (
    StepServices,
    add_figures,
    encode_published,
    encode_state,
    ended_try_error,
    find_running_loop,
    save_in_loop_error,
    validate_figures,
    validate_progress,
)

if TYPE_CHECKING:
    from flowckpt.execution.current_step import CurrentStep, Progress
    from flowckpt.execution.executors.base import WayUp


# The messages of a step in a worker are sent by a separate thread.
#
# The step itself never uses the connection: so a step that is ended at any point leaves no partial message, and a full
# connection does not block it.


EVERY_SECONDS = 0.1
"""The shortest interval between two progress messages."""

PROGRESS, SAVE, LOAD, PUBLISH = "progress", "save", "load", "publish"
_LOOK_SECONDS = 0.1


class UplinkClosedError(Exception):
    """No more messages can be sent.

    Attributes:
        cause: why the connection is lost; None if the step has ended.
    """

    def __init__(self, cause: BaseException | None) -> None:
        super().__init__(str(cause or "the step has ended"))
        self.cause = cause


class Question:
    """A message that waits for its reply."""

    def __init__(self, message: bytes) -> None:
        self.message = message
        self.reply: bytes | None = None
        self.is_over = threading.Event()


class Uplink:
    """Sends the messages of one try of a step; its thread is started for the first message.

    Args:
        way: the connection to the engine; only the thread uses it.
    """

    def __init__(self, way: WayUp) -> None:
        self._way = way
        self._condition = threading.Condition()
        self._questions: deque[Question] = deque()
        self._news: Progress | None = None
        self._due = 0.0
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._failure: BaseException | None = None

    def tell(self, progress: Progress) -> None:
        """Send progress soon; of several waiting reports only the newest is sent."""
        with self._condition:
            is_first, self._news = self._news is None, progress
            if is_first and not self._is_closed:
                self._wake()

    def ask(self, message: bytes) -> bytes:
        """Send a message, and wait for the reply.

        Raises:
            UplinkClosedError: the step has ended, or the connection is lost.
        """
        question = Question(message)
        with self._condition:
            if self._is_closed or self._failure is not None:
                raise UplinkClosedError(self._failure)
            self._questions.append(question)
            self._wake()
        while not question.is_over.wait(_LOOK_SECONDS):  # an exception that ends the step is raised between two waits
            pass
        if question.reply is None:
            raise UplinkClosedError(self._failure)
        return question.reply

    def close(self, *, waits: bool = True) -> None:
        """Accept nothing more."""
        with self._condition:
            self._is_closed = True
            self._condition.notify()
        if waits and self._thread is not None:
            self._thread.join()

    def _wake(self) -> None:
        if self._thread is None:
            thread = threading.Thread(target=self._send_all, name="flowckpt-uplink", daemon=True)
            thread.start()
            self._thread = thread
        self._condition.notify()

    def _send_all(self) -> None:
        question: Question | None = None
        try:
            while (item := self._next()) is not None:
                if isinstance(item, Question):
                    question = item
                    question.reply = self._way.ask(question.message)
                    question.is_over.set()
                else:
                    self._way.tell(pickle.dumps((PROGRESS, item)))
        except Exception as failure:  # the connection is lost
            with self._condition:
                self._failure = failure
                waiting, self._questions = self._questions, deque()
            for each in (question, *waiting):
                if each is not None:
                    each.is_over.set()

    def _next(self) -> Question | Progress | None:
        """Wait for the next message; None at the end."""
        with self._condition:
            while True:
                if self._questions:
                    return self._questions.popleft()
                now = time.monotonic()
                if self._news is not None and (now >= self._due or self._is_closed):
                    progress, self._news, self._due = self._news, None, now + EVERY_SECONDS
                    return progress
                if self._is_closed:
                    return None
                self._condition.wait(None if self._news is None else self._due - now)


class StepSnapshot(NamedTuple):
    """The facts about a step that the engine sends with it.

    Attributes:
        executor: the name of the executor.
        most_tries: how many tries the step may have.
        is_followed: whether the run's progress is shown anywhere.
        state: the last saved state, encoded; empty if there is none.
        may_be_old: whether the executor may run the step again by itself, so that the step asks the engine for its
            state.
        baggage: the parcel of `StepBaggage`; empty for none.
        mark: the name that the worker holds while it runs the step.
    """

    executor: str
    most_tries: int | None
    is_followed: bool
    state: tuple[Any, ...]
    may_be_old: bool
    baggage: bytes = b""
    mark: str = ""


class RemoteStepServices(StepServices):
    """The services of one try of a step in a worker.

    Args:
        snapshot: the facts that the engine sent with the step.
        way: the connection to the engine, if the executor has one.
    """

    def __init__(self, snapshot: StepSnapshot, way: WayUp | None) -> None:
        self._snapshot = snapshot
        self._way = way
        self._uplink: Uplink | None = None
        self._state = snapshot.state
        self.baggage, self.mark = snapshot.baggage, snapshot.mark
        self._has_state = not snapshot.may_be_old or way is None
        self._process = os.getpid()
        self._is_closed = False
        self._lock = threading.Lock()
        self.figures: dict[str, int | float] = {}
        """The figures of the step; the engine gets them with the answer."""
        self.published: dict[str, Any] = {}
        """The published values that could not be sent; the engine gets them with the answer, too."""
        self.is_unheard = False
        """Whether progress was reported without a way to the engine."""

    def progress(self, current: CurrentStep, done: float, total: float | None, note: str) -> None:
        """Report the progress of a step; see `CurrentStep.progress`."""
        report = validate_progress(done, total, note)
        if not self._snapshot.is_followed or os.getpid() != self._process:
            return
        if self._way is None:
            self.is_unheard = True
        else:
            self._open_uplink(self._way).tell(report)

    def record(self, current: CurrentStep, figures: Mapping[str, Any]) -> None:
        """Add figures of a step; see `CurrentStep.record`."""
        numbers = validate_figures(figures)
        self._refuse_other_process(current, "record")
        with self._lock:
            if self._is_closed:
                raise ended_try_error(current.path, current.tries)
            add_figures(self.figures, numbers)

    def publish(self, current: CurrentStep, name: str, value: Any) -> None:
        """Publish a value; see `CurrentStep.publish`. Without a connection it is sent with the answer."""
        published = {name: encode_published(current, name, value)}
        self._refuse_other_process(current, "publish")
        if self._way is None:
            with self._lock:
                if self._is_closed:
                    raise ended_try_error(current.path, current.tries)
                self.published.update(published)
        else:
            self._ask_engine(current, (PUBLISH, published))

    def save(self, current: CurrentStep, state: Any, as_type: Any) -> None:
        """Make the partial state of a step durable; see `CurrentStep.save`."""
        if find_running_loop() is not None:
            raise save_in_loop_error(current.path)
        self._save(current, state, as_type)

    async def save_async(self, current: CurrentStep, state: Any, as_type: Any) -> None:
        """Make the partial state of a step durable, in an async step; see `CurrentStep.save_async`."""
        await asyncio.to_thread(self._save, current, state, as_type)

    def load(self, current: CurrentStep, default: Any, as_type: Any) -> Any:
        """Return the partial state of a step; see `CurrentStep.load`."""
        if not self._has_state:
            self._state = self._ask_engine(current, (LOAD, None))
            self._has_state = True
        return super().load(current, default, as_type)

    def find_state(self, path: str) -> tuple[Any, ...]:
        """Return the encoded partial state of the step; nothing if it has saved none."""
        return self._state

    def close(self, *, waits: bool = True) -> None:
        """Accept nothing more."""
        with self._lock:
            self._is_closed = True
        if self._uplink is not None:
            self._uplink.close(waits=waits)

    def _open_uplink(self, way: WayUp) -> Uplink:
        """Return the uplink; most steps need none."""
        if self._uplink is None:
            with self._lock:
                if self._uplink is None:
                    self._uplink = Uplink(way)
                    if self._is_closed:
                        self._uplink.close()
        return self._uplink

    def _save(self, current: CurrentStep, state: Any, as_type: Any) -> None:
        if self._way is None:
            raise self._executor_error(
                current,
                f"step {current.path!r} cannot save: it runs on executor {self._snapshot.executor!r}, whose workers have no way "
                "back to the engine while they work; run it on 'process', 'thread' or a Dask cluster",
                "Say so by .on(…) or --executor, or leave save() out.",
            )
        tree = encode_state(current, state, as_type)
        self._ask_engine(current, (SAVE, tree))
        self._state, self._has_state = (tree,), True

    def _ask_engine(self, current: CurrentStep, question: tuple[str, Any]) -> Any:
        """Return the engine's reply, or raise it."""
        assert self._way is not None
        self._refuse_other_process(current, question[0])
        try:
            is_done, reply = pickle.loads(self._open_uplink(self._way).ask(pickle.dumps(question)))  # noqa: S301 - from the engine
        except UplinkClosedError as closed:
            if closed.cause is None:
                raise ended_try_error(current.path, current.tries) from None
            raise self._executor_error(
                current,
                f"step {current.path!r} cannot {question[0]}: the engine cannot be reached from its worker: {closed.cause}",
                "A resume of the run continues from what was saved before.",
            ) from closed
        if not is_done:
            raise reply
        return reply

    def _executor_error(self, current: CurrentStep, message: str, remedy: str) -> ExecutorError:
        return ExecutorError(message, executor=self._snapshot.executor, path=current.path, remedy=remedy)

    def _refuse_other_process(self, current: CurrentStep, what: str) -> None:
        if os.getpid() != self._process:
            raise self._executor_error(
                current,
                f"current_step() was asked to {what} in a process that step {current.path!r} has started itself",
                f"Call {what}() in the process that calls the function of the step.",
            )


# What a worker sends, read: numbers, texts and containers; nothing is built here that a worker chose.


def read_plain(message: bytes) -> Any:
    """Return plain data.

    Raises:
        ValueError: there is a class or a function in it.
        pickle.UnpicklingError: it is not pickled data.
    """
    return _SafeUnpickler(io.BytesIO(message)).load()


class _SafeUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str, /) -> Any:
        raise ValueError(f"a worker answered with a {module}.{name}")
