"""What a `.command()` step gives to its workflow, and leaves in the record."""

from __future__ import annotations

import attrs


@attrs.frozen
class CommandOutput:
    r"""How a command ended, and what it wrote.

    Attributes:
        exit_code: what it returned; the negative number of the signal that killed it.
        stdout: its standard output, as UTF-8; bytes that are none stand as `\xNN`.
        stderr: its standard error, likewise.
        stdout_truncated: how many bytes of the standard output were left out, in the middle.
        stderr_truncated: how many bytes of the standard error were left out, likewise.
    """

    exit_code: int
    stdout: str = ""
    stderr: str = ""
    stdout_truncated: int = 0
    stderr_truncated: int = 0
