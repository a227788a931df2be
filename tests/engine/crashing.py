"""A store that dies at a chosen save: before the data is durable, or after it and before the engine hears of it."""

from __future__ import annotations

from typing import Any

from flowckpt.core.records import CheckpointData


class SimulatedCrash(BaseException):
    """The process died here; nothing after it happened."""


class CrashingStore:
    """Passes everything on to a real store until its n-th save."""

    def __init__(self, inner: Any, at: int, *, is_after: bool) -> None:
        self.inner = inner
        self.saves = 0
        self.acknowledged: list[CheckpointData] = []
        self._at = at
        self._is_after = is_after

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    # What the engine looks for by `isinstance` must be methods of the class.
    async def acquire(self, workflow_id: str, *, steal: bool = False) -> Any:
        return await self.inner.acquire(workflow_id, steal=steal)

    async def release(self, workflow_id: str, *, token: str = "") -> None:
        if self.saves < self._at:
            await self.inner.release(workflow_id, token=token)

    async def owner(self, workflow_id: str) -> Any:
        return await self.inner.owner(workflow_id)

    async def save(self, workflow_id: str, data: CheckpointData) -> None:
        self.saves += 1
        if self.saves > self._at:
            raise SimulatedCrash
        if self.saves == self._at and not self._is_after:
            raise SimulatedCrash
        await self.inner.save(workflow_id, data)
        if self.saves == self._at:
            raise SimulatedCrash
        self.acknowledged.append(data)
