"""Executors: where steps can run besides the engine's own process.

An executor is anything with the interface of `concurrent.futures.Executor`. Those of flowckpt's own can also end the work
that the run no longer waits for; what an executor may be able to do is in `base`.
"""
