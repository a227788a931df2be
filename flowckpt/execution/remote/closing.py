"""The end of an executor that a run has made: nothing of it is left."""

from __future__ import annotations

import contextlib
from concurrent.futures import Executor
from typing import Any

from flowckpt.blocking import finish_despite_cancel, run_blocking


async def close(executor: Executor) -> None:
    """Shut an executor down, with what may still run in it.

    Args:
        executor: the executor.
    """
    await finish_despite_cancel(run_blocking(lambda: kill(executor)))


def kill(executor: Executor) -> None:
    """Shut an executor down at once.

    Args:
        executor: the executor.
    """
    own: Any = getattr(executor, "kill", None)
    if callable(own):
        own()
        return
    processes = [*(getattr(executor, "_processes", None) or {}).values()]  # of a ProcessPoolExecutor, which has no door
    with contextlib.suppress(Exception):  # a broken one may refuse
        executor.shutdown(wait=False, cancel_futures=True)
    for each in processes:
        with contextlib.suppress(Exception):
            each.kill()
