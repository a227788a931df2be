"""Work that this process began and left to itself, and that may still be at it: on a thread, or on an executor.

Nothing can stop a function on a thread, and few executors can stop what has begun.

What such a step has not done yet it may do in a moment, so a claim that denies it proves nothing until it has ended. That
matters where a run is resumed in the very process in which it was stopped.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

_lock = threading.Lock()
_left: dict[tuple[str, str], list[Callable[[], bool]]] = {}


def leave_running(workflow_id: str, path: str, is_at_work: Callable[[], bool]) -> None:
    """Note work that was left to itself.

    Args:
        workflow_id: the run.
        path: its step.
        is_at_work: tells whether it is still at it.
    """
    with _lock:
        for key in [key for key, works in _left.items() if not any(each() for each in works)]:
            del _left[key]
        _left.setdefault((workflow_id, path), []).append(is_at_work)


def is_left_running(workflow_id: str, path: str) -> bool:
    """Tell whether work of a step goes on that this process began, and that nobody waits for any more.

    Args:
        workflow_id: the run.
        path: the step.
    """
    with _lock:
        return any(each() for each in _left.get((workflow_id, path), ()))
