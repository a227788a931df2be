"""The world outside a run that waits: time passes, and people answer what a suspended run asks, once."""

from __future__ import annotations

from typing import Any

from crashing import SimulatedCrash, pass_on

from flowckpt import RunOptions, WorkflowEngine, in_sync
from flowckpt.core.records import CheckpointData, WaitKind
from flowckpt.testing import FakeClock


class Saves:
    """Counts the saves of a run over all its attempts, and says at which the process dies.

    Attributes:
        count: how many there were.
        at: those at which it dies.
        is_after: whether it dies after the save, and not before.
        sent: how many signals and answers the run was sent.
    """

    def __init__(self, *at: int, is_after: bool = True) -> None:
        self.count = 0
        self.sent = 0
        self.at = frozenset(at)
        self.is_after = is_after


class MortalStore:
    """Passes everything on to a store, and dies at chosen saves of the run."""

    def __init__(self, inner: Any, saves: Saves, beside: MortalStore | None = None) -> None:
        self._inner = inner
        self._saves = saves
        self._deaths: list[bool] = [] if beside is None else beside._deaths  # of one process
        pass_on(self, inner)

    @property
    def _is_dead(self) -> bool:
        return bool(self._deaths)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def acquire(self, workflow_id: str, *, take_over: bool = False) -> Any:
        return await self._inner.acquire(workflow_id, take_over=take_over)

    async def release(self, workflow_id: str, *, token: str = "") -> None:
        if not self._is_dead:
            await self._inner.release(workflow_id, token=token)

    async def owner(self, workflow_id: str) -> Any:
        return await self._inner.owner(workflow_id)

    async def signals(self, workflow_id: str) -> Any:
        return await self._inner.signals(workflow_id)

    async def send_signal(self, workflow_id: str, signal: Any) -> Any:
        return await self._inner.send_signal(workflow_id, signal)

    async def remove_signals(self, workflow_id: str, signal_ids: Any) -> None:
        if self._is_dead:
            raise SimulatedCrash
        await self._inner.remove_signals(workflow_id, signal_ids)

    async def save(self, workflow_id: str, data: CheckpointData) -> None:
        if self._is_dead:
            raise SimulatedCrash
        self._saves.count += 1
        is_last = self._saves.count in self._saves.at
        if is_last and not self._saves.is_after:
            self._deaths.append(True)
            raise SimulatedCrash
        await self._inner.save(workflow_id, data)
        if is_last:
            self._deaths.append(True)
            raise SimulatedCrash


def to_its_end(reopen: Any, workflow: Any, saves: Saves, **inputs: Any) -> Any:
    """Start a run and resume it until it has ended, answering what it asks each time it is suspended.

    Args:
        reopen: opens the store like a new process.
        workflow: what is run.
        saves: when the process dies.
        **inputs: its inputs.
    """
    clock = FakeClock()
    for _ in range(200):
        store = reopen()
        engine = WorkflowEngine(MortalStore(store, saves), clock=clock)
        is_there = _looked(store.load_latest("run")) is not None
        try:
            if is_there:
                # However often it dies at one place, nobody has to look at it first.
                result = engine.resume_sync(workflow, workflow_id="run", options=RunOptions(max_crashes=0))
            else:
                result = engine.run_sync(workflow, workflow_id="run", **inputs)
        except SimulatedCrash:
            continue
        if result.status != "suspended":
            return result
        outside = WorkflowEngine(reopen(), clock=clock)
        for wait in result.waits:
            if wait.kind is WaitKind.SIGNAL:
                in_sync(outside).signal("run", wait.name, f"data of {wait.name}")
            elif wait.kind is WaitKind.APPROVAL:
                in_sync(outside).approve("run", wait.path, by="ann")
        saves.sent += sum(not wait.is_timed for wait in result.waits)
        if all(wait.is_timed for wait in result.waits):
            clock.advance((result.due_at - clock.now()).total_seconds())
    raise AssertionError("the run does not come to its end")


def _looked(work: Any) -> Any:
    import asyncio

    return asyncio.run(work)
