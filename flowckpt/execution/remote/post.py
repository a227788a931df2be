"""What a step in a worker hands in, carried up on a thread of its own.

The step itself never touches the way up: so what ends it in the middle of anything leaves no half message behind, and a
way that is full does not hold it up.
"""

from __future__ import annotations

import pickle
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flowckpt.execution.handing_in import Progress
    from flowckpt.executors.way_up import WayUp

EVERY_SECONDS = 0.1
"""How often at most progress is carried."""

PROGRESS, SAVE, LOAD = "progress", "save", "load"
_LOOK_SECONDS = 0.1


class PostClosedError(Exception):
    """Nothing can be carried any more.

    Attributes:
        cause: why the way up is gone; None where the step has ended.
    """

    def __init__(self, cause: BaseException | None) -> None:
        super().__init__(str(cause or "the step has ended"))
        self.cause = cause


class _Question:
    def __init__(self, message: bytes) -> None:
        self.message = message
        self.reply: bytes | None = None
        self.is_over = threading.Event()


class Post:
    """Carries what one try of a step says; its thread is started with the first of it.

    Args:
        way: the way up; only the thread uses it.
    """

    def __init__(self, way: WayUp) -> None:
        self._way = way
        self._condition = threading.Condition()
        self._questions: deque[_Question] = deque()
        self._news: Progress | None = None
        self._due = 0.0
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._failure: BaseException | None = None

    def tell(self, news: Progress) -> None:
        """Have progress carried, soon; of what waits, only the newest is.

        Args:
            news: how far the step is.
        """
        with self._condition:
            is_first, self._news = self._news is None, news
            if is_first and not self._is_closed:
                self._wake()

    def ask(self, message: bytes) -> bytes:
        """Have a message carried, and wait for the reply.

        Args:
            message: what is asked.

        Raises:
            PostClosedError: the step has ended, or the way up is gone.
        """
        question = _Question(message)
        with self._condition:
            if self._is_closed or self._failure is not None:
                raise PostClosedError(self._failure)
            self._questions.append(question)
            self._wake()
        while not question.is_over.wait(_LOOK_SECONDS):  # what ends a step by force is raised between two waits
            pass
        if question.reply is None:
            raise PostClosedError(self._failure)
        return question.reply

    def close(self, *, waits: bool = True) -> None:
        """Take nothing more.

        Args:
            waits: until everything is carried.
        """
        with self._condition:
            self._is_closed = True
            self._condition.notify()
        if waits and self._thread is not None:
            self._thread.join()

    def _wake(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._carry, name="flowckpt-post", daemon=True)
            self._thread.start()
        self._condition.notify()

    def _carry(self) -> None:
        question: _Question | None = None
        try:
            while (item := self._next()) is not None:
                if isinstance(item, _Question):
                    question = item
                    question.reply = self._way.ask(question.message)
                    question.is_over.set()
                else:
                    self._way.tell(pickle.dumps((PROGRESS, item)))
        except Exception as failure:  # the way up is gone
            with self._condition:
                self._failure = failure
                waiting, self._questions = self._questions, deque()
            for each in (question, *waiting):
                if each is not None:
                    each.is_over.set()

    def _next(self) -> _Question | Progress | None:
        """Wait for what is to be carried next; None at the end."""
        with self._condition:
            while True:
                if self._questions:
                    return self._questions.popleft()
                now = time.monotonic()
                if self._news is not None and (now >= self._due or self._is_closed):
                    news, self._news, self._due = self._news, None, now + EVERY_SECONDS
                    return news
                if self._is_closed:
                    return None
                self._condition.wait(None if self._news is None else self._due - now)
