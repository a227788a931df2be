"""Progress for programs: every event as a line of JSON on standard output."""

from __future__ import annotations

import contextlib
from typing import Any

from flowckpt.cli.output import OutputFailedError, write_if_read
from flowckpt.cli.run_documents import event_document
from flowckpt.cli.terminal_text import json_text
from flowckpt.events import Event


class JsonLines:
    """Writes events as JSON lines.

    Args:
        output_type: what the workflow says that it returns.
    """

    def __init__(self, output_type: Any) -> None:
        self._output_type = output_type

    def start(self) -> None:
        """Do nothing."""

    def tell(self, event: Event) -> None:
        """Write the event."""
        with contextlib.suppress(OutputFailedError):
            write_if_read(f"{json_text(event_document(event, self._output_type))}\n")

    def stop(self) -> None:
        """Do nothing."""
