"""Worker processes, looked at from outside."""

from __future__ import annotations

import os
import time
from pathlib import Path


def is_running(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat[stat.rfind(")") + 2] not in "ZX"


def seen(file: Path, *, seconds: float = 120) -> str:
    """Wait until another process has written a file, and return what is in it."""
    until = time.monotonic() + seconds
    while not (file.exists() and file.read_text().endswith("\n")):
        assert time.monotonic() < until, f"{file} was never written"
        time.sleep(0.01)
    return file.read_text().strip()


def gone(pid: int, *, seconds: float = 120) -> bool:
    """Wait until a process is gone; False where it stays."""
    until = time.monotonic() + seconds
    while is_running(pid):
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


def children() -> set[int]:
    """The worker processes of this one that live."""
    found = set()
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                stat = Path(f"/proc/{name}/stat").read_text()
                line = Path(f"/proc/{name}/cmdline").read_bytes()
            except OSError:
                continue
            fields = stat[stat.rfind(")") + 2 :].split()
            if fields[0] not in "ZX" and fields[1] == str(os.getpid()) and b"worker_main import serve" in line:
                found.add(int(name))
    return found
