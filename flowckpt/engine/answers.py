"""The doors of the engine for whoever tells a run something: signals, and answers to approvals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flowckpt.engine.options import RunOptions
from flowckpt.engine.own_loop import in_own_loop
from flowckpt.lazy import LazyModule

if TYPE_CHECKING:
    from flowckpt.clock import Clock
    from flowckpt.engine import answering
    from flowckpt.engine.answering import Sent
    from flowckpt.evidence.verifier import EvidenceVerifier
    from flowckpt.ids import IdFactory
    from flowckpt.stores.base import CheckpointStore
else:  # only whoever answers needs it
    answering = LazyModule("flowckpt.engine.answering")


class AnswersRuns:
    """What an engine can tell the runs of its store."""

    store: CheckpointStore
    _clock: Clock
    _new_id: IdFactory
    _verifier: EvidenceVerifier | None

    async def signal(
        self, workflow_id: str, name: str, data: Any = None, *, by: str = "", signal_id: str | None = None
    ) -> Sent:
        """Send a signal to a run; it is taken by the wait of its name, now or when the run comes to it.

        Args:
            workflow_id: the run.
            name: the signal's name.
            data: what it carries.
            by: who sends it.
            signal_id: names this very message, so that it can be sent again without being there twice.

        Raises:
            CheckpointNotFoundError: there is no such run.
            SignalRefusedError: the run is complete, or waits for it with a type that the data do not fit.
            EncodingError: the data cannot be recorded.
            SettingError: the store cannot deliver signals.
        """
        made = self._new_id() if signal_id is None else signal_id
        return await answering.send_signal(self.store, self._clock, workflow_id, name, data=data, by=by, signal_id=made)

    async def approve(
        self, workflow_id: str, name: str, *, by: str = "", comment: str = "", options: RunOptions | None = None
    ) -> Sent:
        """Approve what a run asks for; its evidence is checked first.

        Args:
            workflow_id: the run.
            name: the approval's name, or the path of its step.
            by: who approves.
            comment: why.
            options: how evidence is checked.

        Raises:
            CheckpointNotFoundError: there is no such run.
            SignalRefusedError: the run does not ask for it, or it is answered already.
            ApprovalStaleError: what is to be approved is no longer what the run has asked for.
            SettingError: the store cannot deliver signals.
        """
        return await self._answer(workflow_id, name, by, comment, options, is_approved=True)

    async def reject(
        self, workflow_id: str, name: str, *, by: str = "", comment: str = "", options: RunOptions | None = None
    ) -> Sent:
        """Say no to what a run asks for; see `approve`."""
        return await self._answer(workflow_id, name, by, comment, options, is_approved=False)

    async def _answer(
        self, workflow_id: str, name: str, by: str, comment: str, options: RunOptions | None, *, is_approved: bool
    ) -> Sent:
        return await answering.send_answer(
            self.store,
            self._clock,
            workflow_id,
            name,
            is_approved=is_approved,
            by=by,
            comment=comment,
            signal_id=self._new_id(),
            verifier=self._verifier,
            options=options or RunOptions(),
        )

    def signal_sync(self, workflow_id: str, name: str, data: Any = None, **how: Any) -> Sent:
        """Send a signal from code that is not async; see `signal`."""
        return in_own_loop(self.signal(workflow_id, name, data, **how), "signal_sync")

    def approve_sync(self, workflow_id: str, name: str, **how: Any) -> Sent:
        """Approve from code that is not async; see `approve`."""
        return in_own_loop(self.approve(workflow_id, name, **how), "approve_sync")

    def reject_sync(self, workflow_id: str, name: str, **how: Any) -> Sent:
        """Reject from code that is not async; see `approve`."""
        return in_own_loop(self.reject(workflow_id, name, **how), "reject_sync")
