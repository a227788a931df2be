"""Room on the stack: a value of the depth that may be recorded can be written and read wherever a program stands."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def on_fresh_stack(work: Callable[[], T]) -> T:
    """Do work in a thread of its own: depth is counted by thread, and the caller's may be nearly used up.

    Args:
        work: what to do; what it returns or raises is handed on.
    """
    outcome: list[Any] = [None, None]

    def do() -> None:
        try:
            outcome[0] = work()
        except BaseException as error:
            outcome[1] = error

    thread = threading.Thread(target=do, name="flowckpt-codec")
    thread.start()
    thread.join()
    value, error = outcome
    if error is not None:
        raise error
    result: T = value
    return result
