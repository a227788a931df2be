"""The messages for the runs of the store in memory, kept encoded, as the durable ones keep them."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from flowckpt.errors import CheckpointNotFoundError
from flowckpt.lazy import LazyModule
from flowckpt.stores.refusal import refused_as_encoding_error

if TYPE_CHECKING:
    from flowckpt import codec
    from flowckpt.checkpoint import signal as messages
    from flowckpt.checkpoint.signal import Signal
else:  # needed once a message is sent
    codec = LazyModule("flowckpt.codec")
    messages = LazyModule("flowckpt.checkpoint.signal")


class _Run(Protocol):
    started_at: datetime | None


class HoldsSignals:
    """What makes the store in memory one that delivers signals."""

    _runs: Any  # runs by their ids; the store says more

    def _held(self, workflow_id: str) -> dict[str, bytes] | None:
        """Return the messages of a run, by their ids; None where there is no such run."""
        run: _Run | None = self._runs.get(workflow_id)
        if run is None or not run.started_at:
            return None
        held: dict[str, tuple[_Run, dict[str, bytes]]] = self.__dict__.setdefault("_signals", {})
        if workflow_id not in held or held[workflow_id][0] is not run:  # it was cleared, and begun anew
            held[workflow_id] = run, {}
        return held[workflow_id][1]

    async def send_signal(self, workflow_id: str, signal: Signal) -> bool:
        """Keep a message; see `DeliversSignals`."""
        held = self._held(workflow_id)
        if held is None:
            raise CheckpointNotFoundError(workflow_id)
        with refused_as_encoding_error():
            encoded = codec.dumps(signal.to_document()).encode()
        return held.setdefault(signal.signal_id, encoded) is encoded

    async def signals(self, workflow_id: str) -> Sequence[Signal]:
        """Return the messages for a run; see `DeliversSignals`."""
        held = self._held(workflow_id) or {}
        found = [messages.Signal.from_document(json.loads(each)) for each in held.values()]
        return sorted(found, key=lambda signal: (signal.sent_at, signal.signal_id))

    async def remove_signals(self, workflow_id: str, signal_ids: Collection[str]) -> None:
        """Forget messages; see `DeliversSignals`."""
        held = self._held(workflow_id) or {}
        for each in signal_ids:
            held.pop(each, None)
