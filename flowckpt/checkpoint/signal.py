"""What somebody tells a run from outside: a signal, or the answer to an approval."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import attrs

from flowckpt.checkpoint.wait import Wait, WaitKind, moment_text


@attrs.frozen
class Signal:
    """A message for a run. It lies in the store until the run has taken it, and is taken once.

    Attributes:
        signal_id: names this very message; sent again under the same id, it is the same one.
        name: what it is called: that of the signal, or of the approval.
        sent_at: when it was sent, aware and in UTC; messages are taken in this order.
        data: what it carries, as a tree of the codec.
        by: who sent it; may be empty.
        kind: whether it is a signal or the answer to an approval.
        path: the step that it is for; empty for any that waits for its name.
        request: of an answer, the question that it is to.
    """

    signal_id: str
    name: str
    sent_at: datetime
    data: Any = None
    by: str = ""
    kind: WaitKind = WaitKind.SIGNAL
    path: str = ""
    request: str = ""

    def ends(self, wait: Wait) -> bool:
        """Tell whether it is what a step waits for.

        Args:
            wait: the wait.
        """
        if self.kind is not wait.kind or (self.path and self.path != wait.path):
            return False
        return self.request == wait.request if self.kind is WaitKind.APPROVAL else self.name == wait.name

    def to_document(self) -> dict[str, Any]:
        """Return the message as plain JSON; `from_document` returns an equal one."""
        return {
            "signal_id": self.signal_id,
            "kind": str(self.kind),
            "name": self.name,
            "sent_at": moment_text(self.sent_at),
            "by": self.by,
            "path": self.path,
            "request": self.request,
            "data": self.data,
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Signal:
        """Return the message of a document.

        Args:
            document: what `to_document` returned.

        Raises:
            LookupError: something is missing in it.
            ValueError: something in it is malformed.
        """
        return cls(
            document["signal_id"],
            document["name"],
            datetime.fromisoformat(document["sent_at"]),
            document["data"],
            document["by"],
            WaitKind(document["kind"]),
            document["path"],
            document["request"],
        )
