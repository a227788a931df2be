"""Emulate a machine with many slow cores: each process gets a fixed share of one core, as much as such a core would do.

Four clients of a PostgreSQL server and its four sessions need eight cores to run undisturbed. On a machine with two
cores, eight processes that each get a quarter of a core see the same: none waits for the processor of another. Linux
enforces the shares (control groups, `cpu.cfs_quota_us` or `cpu.max`), which needs root.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

PERIOD_US = 4_000
"""Shorter than the default of 100 ms, so that a process pauses as briefly and often as one on a slow core."""

_V1, _V2 = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")


def is_possible() -> bool:
    """Return whether this process may give shares of a core to processes."""
    return _root() is not None and os.geteuid() == 0


def _root() -> Path | None:
    if (_V1 / "cpu.cfs_quota_us").exists() or (_V1 / "cgroup.procs").exists():
        return _V1
    controllers = _V2 / "cgroup.subtree_control"
    return _V2 if controllers.exists() and "cpu" in controllers.read_text().split() else None


class Shares:
    """Gives each process the same share of one core.

    Args:
        directory: the control group for the groups of the processes.
        share: the share of a core, above 0 and at most 1.
    """

    def __init__(self, directory: Path, share: float) -> None:
        self._directory = directory
        self._quota_us = int(PERIOD_US * share)

    def limit(self, pids: Iterable[int]) -> None:
        """Give each of these processes its share from now on; one that has just ended is passed over."""
        for pid in pids:
            group = self._directory / str(pid)
            group.mkdir(exist_ok=True)
            if _root() == _V1:
                (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
                (group / "cpu.cfs_quota_us").write_text(str(self._quota_us))
            else:
                (group / "cpu.max").write_text(f"{self._quota_us} {PERIOD_US}")
            with contextlib.suppress(ProcessLookupError):
                (group / "cgroup.procs").write_text(str(pid))


@contextlib.contextmanager
def shares(share: float) -> Iterator[Shares]:
    """Yield the shares of a core; afterwards, all limited processes run freely again."""
    root = _root()
    assert root is not None
    directory = root / f"flowckpt-bench-{os.getpid()}"
    directory.mkdir()
    if root == _V2:
        (directory / "cgroup.subtree_control").write_text("+cpu")
    try:
        yield Shares(directory, share)
    finally:
        for group in directory.iterdir():
            if group.is_dir():
                for pid in (group / "cgroup.procs").read_text().split():
                    with contextlib.suppress(ProcessLookupError):
                        (root / "cgroup.procs").write_text(pid)
                group.rmdir()
        directory.rmdir()
