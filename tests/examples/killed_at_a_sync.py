"""A process that kills itself at the n-th sync of a save, before or after it."""

import os
import signal

from flowckpt.core.system import filesystem

_sync = filesystem._sync_data
_synced = 0


def begin() -> None:
    """Count syncs in the file `synced`, and die at the one that `KILL_AT` and `KILL` name."""
    filesystem._sync_data = _counted


def _counted(file: int) -> None:
    global _synced
    _synced += 1
    is_last = _synced == int(os.environ.get("KILL_AT", "0"))
    if is_last and os.environ["KILL"] == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    _sync(file)
    if is_last:
        os.kill(os.getpid(), signal.SIGKILL)
    with open("synced", "w") as note:
        note.write(str(_synced))
