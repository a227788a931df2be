"""Executors: where steps can run outside the engine's own process.

An executor is anything with the interface of `concurrent.futures.Executor`. flowckpt's own executors can also end work
that the run no longer waits for; `base` defines such optional abilities.
"""
