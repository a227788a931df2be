"""The work in a Dask worker: its thread is noted so that it can be ended, and it can send messages to the engine."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import threading
from collections.abc import Callable
from typing import Any

from flowckpt.core.system import external
from flowckpt.execution.executors.base import way_up
from flowckpt.execution.remote.channel import Question
from flowckpt.execution.thread import AbandonedStepError

_LOOK_SECONDS = 1.0

_threads: dict[str, int] = {}
_lock = threading.Lock()
_numbers = itertools.count(1)
_questions: dict[int, Question] = {}


class _EngineConnection:
    """The connection to the engine. Events carry messages, and announce questions that the engine then fetches."""

    def __init__(self, key: str, topic: str) -> None:
        self._key = key
        self._topic = topic
        self._worker = external.distributed.get_worker()

    def tell(self, message: bytes) -> None:
        self._worker.log_event(self._topic, (self._key, self._worker.address, message))

    def ask(self, message: bytes) -> bytes:
        number, question = next(_numbers), Question(message)
        _questions[number] = question
        try:
            self._worker.log_event(self._topic, (self._key, self._worker.address, number))
            while not question.is_over.wait(_LOOK_SECONDS):
                if not self._is_wanted():
                    break
        finally:
            del _questions[number]
        if question.reply is None:
            raise ConnectionError("the run no longer waits for the step")
        return question.reply

    def _is_wanted(self) -> bool:
        """Return whether the scheduler still wants the work: not if the engine is gone or has abandoned it."""
        task = self._worker.state.tasks.get(self._key)
        return task is not None and task.state in ("executing", "long-running")


def work(key: str, topic: str, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Call a function; None if it was ended.

    Args:
        key: the id of the work.
        topic: the topic of the events with its messages; empty without a listener.
        function: the function.
        args: its arguments.
    """
    with _lock:
        _threads[key] = threading.get_ident()
    try:
        token = way_up.set(_EngineConnection(key, topic) if topic else None)
        try:
            return function(*args)
        finally:
            way_up.reset(token)
    except AbandonedStepError:
        return None
    finally:
        with _lock:
            _threads.pop(key, None)


def end_work(key: str) -> bool:
    """Raise an exception in the thread of some work; return whether the work was running here."""
    with _lock:
        thread = _threads.get(key)
        if thread is None:
            return False
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(AbandonedStepError))
        return True


def is_at_work(key: str) -> bool:
    """Return whether work is running in this worker."""
    return key in _threads


def get_question(number: int) -> bytes | None:
    """Return a waiting question of the work here; None if it no longer waits."""
    question = _questions.get(number)
    return None if question is None else question.message


def answer(number: int, reply: bytes | None) -> None:
    """Answer a question of the work here.

    Args:
        number: the number of the question.
        reply: the answer; None if there will be no answer.
    """
    question = _questions.get(number)
    if question is not None:
        question.reply = reply
        question.is_over.set()


def forget_topic(topic: str, dask_scheduler: Any = None) -> None:
    """Have the scheduler forget the events of a topic; called there."""
    with contextlib.suppress(AttributeError):  # the place of the events differs between releases of Dask
        dask_scheduler._broker._topics.pop(topic, None)
    with contextlib.suppress(AttributeError):
        dask_scheduler.events.pop(topic, None)
