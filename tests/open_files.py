"""The open files of this process in a test's directory; files of earlier tests may be closed at any time."""

from __future__ import annotations

import os
from pathlib import Path


def open_below(directory: Path) -> list[str]:
    """Return the open files and directories in a directory, including itself."""
    links = (os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd"))
    return [link for link in links if Path(link).is_relative_to(directory)]
