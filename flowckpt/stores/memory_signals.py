"""The messages for the runs of the store in memory, kept encoded, as the durable ones keep them."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from flowckpt.errors import CheckpointNotFoundError
from flowckpt.lazy import LazyModule
from flowckpt.stores.base import refused_as_encoding_error

if TYPE_CHECKING:
    from flowckpt import codec
    from flowckpt.checkpoint import signal as messages
    from flowckpt.checkpoint.signal import Signal
else:  # needed once a message is sent
    codec = LazyModule("flowckpt.codec")
    messages = LazyModule("flowckpt.checkpoint.signal")


class _Run(Protocol):
    started_at: datetime | None
    signals: dict[str, bytes]


class HoldsSignals:
    """What makes the store in memory one that delivers signals."""

    _runs: Mapping[str, _Run]

    async def send_signal(self, workflow_id: str, signal: Signal) -> bool:
        """Keep a message; see `DeliversSignals`."""
        run = self._runs.get(workflow_id)
        if run is None or not run.started_at:
            raise CheckpointNotFoundError(workflow_id)
        with refused_as_encoding_error():
            encoded = codec.dumps(signal.to_document()).encode()
        return run.signals.setdefault(signal.signal_id, encoded) is encoded

    async def signals(self, workflow_id: str) -> Sequence[Signal]:
        """Return the messages for a run; see `DeliversSignals`."""
        run = self._runs.get(workflow_id)
        held = () if run is None else run.signals.values()
        found = [messages.Signal.from_document(json.loads(each)) for each in held]
        return sorted(found, key=lambda signal: (signal.sent_at, signal.signal_id))

    async def remove_signals(self, workflow_id: str, signal_ids: Collection[str]) -> None:
        """Forget messages; see `DeliversSignals`."""
        run = self._runs.get(workflow_id)
        if run is not None:
            for each in signal_ids:
                run.signals.pop(each, None)
