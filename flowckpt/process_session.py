"""All processes of a session: those that a command started, and that did not leave it on purpose.

The process group alone is not enough: coreutils' `timeout` makes a group of its own, and so does a shell with job
control. The leader must not have been reaped yet; so long its id can mean no other process, group or session.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_GONE = (ProcessLookupError, PermissionError)


def signal_session(leader: int, number: signal.Signals) -> None:
    """Send a signal to every process of a session.

    Args:
        leader: the process that leads it.
        number: the signal.
    """
    with suppress(*_GONE):
        os.killpg(leader, number)
    for pid in _members(leader):
        with suppress(*_GONE):
            if os.getpgid(pid) != leader:
                _signal_member(pid, leader, number)


def has_living(leader: int) -> bool:
    """Tell whether a process of a session lives; where the system does not list them, only the leader's end counts.

    Args:
        leader: the process that leads it.
    """
    return any(_state(pid) not in ("", "Z", "X") for pid in _members(leader))


def _members(leader: int) -> Iterator[int]:
    try:
        names = os.listdir("/proc")  # noqa: PTH208 - names only, 300 of them in a loop
    except OSError:
        return
    for name in names:
        if name.isdigit():
            with suppress(*_GONE):
                if os.getsid(int(name)) == leader:
                    yield int(name)


def _signal_member(pid: int, leader: int, number: signal.Signals) -> None:
    if not hasattr(os, "pidfd_open"):
        os.kill(pid, number)
        return
    with suppress(OSError):
        handle = os.pidfd_open(pid)
        try:
            if os.getsid(pid) == leader:  # still: from here on the handle means this process and no other
                signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)


def _state(pid: int) -> str:
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return ""
    return stat[stat.rfind(b")") + 2 :][:1].decode()
