"""Executors: where steps can run besides the engine's own process.

An executor is anything with the interface of `concurrent.futures.Executor`. Those of flowckpt's own can also end the work
that nobody waits for any more; what an executor may be able to do is in `base`.
"""

from typing import TYPE_CHECKING

from flowckpt.core.system.lazy import front_door

if TYPE_CHECKING:
    from flowckpt.execution.executors.dask import DaskExecutor
    from flowckpt.execution.executors.open import open_executor
    from flowckpt.execution.executors.processes import ProcessExecutor


__all__ = ["DaskExecutor", "ProcessExecutor", "open_executor"]

_ROOMS = {
    "DaskExecutor": "flowckpt.execution.executors.dask",
    "ProcessExecutor": "flowckpt.execution.executors.processes",
    "open_executor": "flowckpt.execution.executors.open",
}

__getattr__, __dir__ = front_door(__name__, _ROOMS, __all__, globals())
