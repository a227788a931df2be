"""What runs in a Dask worker: the work, with word of the thread that does it, so that it can be ended."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

from flowckpt.abandoned import AbandonedStepError

_threads: dict[str, int] = {}
_lock = threading.Lock()


def work(key: str, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Call a function; None where it was ended.

    Args:
        key: what the work is called.
        function: what to call.
        args: its arguments.
    """
    with _lock:
        _threads[key] = threading.get_ident()
    try:
        return function(*args)
    except AbandonedStepError:
        return None
    finally:
        with _lock:
            _threads.pop(key, None)


def end_work(key: str) -> bool:
    """Raise an exception in the thread that does some work; tell whether it was there.

    Args:
        key: what the work is called.
    """
    with _lock:
        thread = _threads.get(key)
        if thread is None:
            return False
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(AbandonedStepError))
        return True
