"""Stores for tests: one that has nothing but the five methods, and one that dies at a chosen save."""

from typing import Any


class FiveMethods:
    """What a third party must write, and no more."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    async def save(self, workflow_id, data):
        await self._inner.save(workflow_id, data)

    async def load(self, workflow_id, checkpoint_id):
        return await self._inner.load(workflow_id, checkpoint_id)

    async def load_latest(self, workflow_id):
        return await self._inner.load_latest(workflow_id)

    async def clear(self, workflow_id):
        await self._inner.clear(workflow_id)

    async def list_checkpoints(self, workflow_id):
        return await self._inner.list_checkpoints(workflow_id)


class SimulatedCrashError(BaseException):
    """The process died here; nothing after it happened."""


class Dying(FiveMethods):
    """Passes on until its n-th save or deletion; there it dies, before it is durable or after it."""

    def __init__(self, inner: Any, at: int, *, is_after: bool) -> None:
        super().__init__(inner)
        self.writes = 0
        self._at = at
        self._is_after = is_after

    async def _write(self, write):
        self.writes += 1
        if self.writes > self._at or (self.writes == self._at and not self._is_after):
            raise SimulatedCrashError
        done = await write
        if self.writes == self._at:
            raise SimulatedCrashError
        return done

    async def save(self, workflow_id, data):
        work = self._inner.save(workflow_id, data)
        try:
            await self._write(work)
        finally:
            work.close()


class DyingAndAble(Dying):
    """The same over a store that can own runs and delete checkpoints."""

    async def acquire(self, workflow_id, *, take_over=False):
        return await self._inner.acquire(workflow_id, take_over=take_over)

    async def release(self, workflow_id, *, token=""):
        if self.writes < self._at:
            await self._inner.release(workflow_id, token=token)

    async def owner(self, workflow_id):
        return await self._inner.owner(workflow_id)

    async def delete_checkpoint(self, workflow_id, checkpoint_id):
        work = self._inner.delete_checkpoint(workflow_id, checkpoint_id)
        try:
            return await self._write(work)
        finally:
            work.close()
