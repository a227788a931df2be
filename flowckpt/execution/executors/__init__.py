"""Executors: where steps can run besides the engine's own process.

An executor is anything with the interface of `concurrent.futures.Executor`. Those of flowckpt's own can also end the work
that nobody waits for any more; what an executor may be able to do is in `base`.
"""

from typing import TYPE_CHECKING

from flowckpt.core.system.lazy import lazy_modules

if TYPE_CHECKING:
    from flowckpt.execution.executors import dask, processes

__all__ = ["dask", "processes"]

__getattr__ = lazy_modules(__name__, *__all__)
