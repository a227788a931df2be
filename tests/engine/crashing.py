"""A store that dies at a chosen save: before the data is durable, or after it and before the engine hears of it."""

from __future__ import annotations

from typing import Any

from flowckpt.core.records import CheckpointData


class SimulatedCrash(BaseException):
    """The process died here; nothing after it happened."""


def pass_on(wrapper: Any, inner: Any) -> None:
    """Give a wrapper all methods of a store that it does not have itself: an adapter does not look at `__getattr__`."""
    for name in dir(inner):
        if not name.startswith("_") and not hasattr(type(wrapper), name) and callable(found := getattr(inner, name)):
            setattr(wrapper, name, found)


class CrashingStore:
    """Passes everything on to a real store until its n-th save."""

    def __init__(self, inner: Any, at: int, *, is_after: bool) -> None:
        self.inner = inner
        self.saves = 0
        self.acknowledged: list[CheckpointData] = []
        self._at = at
        self._is_after = is_after
        pass_on(self, inner)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def acquire(self, workflow_id: str, *, take_over: bool = False) -> Any:
        return await self.inner.acquire(workflow_id, take_over=take_over)

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
