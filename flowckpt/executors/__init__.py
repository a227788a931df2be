"""Executors: where steps can run besides the engine's own process.

An executor is anything with the interface of `concurrent.futures.Executor`. Those of flowckpt's own can also end the work
that nobody waits for any more; what an executor may be able to do is in `base`.
"""

from flowckpt.lazy import front_door

TYPE_CHECKING = False
if TYPE_CHECKING:
    from flowckpt.executors.dask import DaskExecutor
    from flowckpt.executors.opening import open_executor
    from flowckpt.executors.process.pool import ProcessExecutor

__all__ = ["DaskExecutor", "ProcessExecutor", "open_executor"]

_ROOMS = {
    "DaskExecutor": "flowckpt.executors.dask",
    "ProcessExecutor": "flowckpt.executors.process.pool",
    "open_executor": "flowckpt.executors.opening",
}

__getattr__, __dir__ = front_door(__name__, _ROOMS, __all__, globals())
