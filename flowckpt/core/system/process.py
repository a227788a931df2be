"""The identity of this process, and whether another process is still alive.

Pids are reused, so a pid alone does not identify a process. The boot of the machine, the pid and the start time of the
process together do (proc_pid_stat(5), field 22), within one PID namespace (pid_namespaces(7)): two containers of a pod
have one host name, and each has a process 1.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, suppress
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

import attrs

from flowckpt.core.system import external
from flowckpt.core.system.attrs_base import FieldEquality, lazy_frozen


@lazy_frozen(eq=False, repr=False)
class ProcessIdentity(FieldEquality):
    """The identity of a process.

    Attributes:
        host: the machine's name.
        boot_id: the boot of the machine, a hash of the machine's id, and the PID namespace, unless it is that of the
            whole machine; separated by slashes. Empty if the system has no boot id. Older records have only the boot.
        pid: the process id.
        start_time: when it started, in ticks since the boot; 0 if unknown.
    """

    host: str
    boot_id: str
    pid: int
    start_time: int

    @property
    def system(self) -> tuple[str, str, str]:
        """The boot, the machine and the PID namespace; each may be empty."""
        boot, machine, namespace, *_ = (*self.boot_id.split("/"), "", "")
        return boot, machine, namespace


def current_process() -> ProcessIdentity:
    """Identify the calling process."""
    return _identity_of(os.getpid(), os.uname().nodename)


def identify_process(pid: int) -> ProcessIdentity:
    """Identify another process; one that cannot be seen from here counts as one of another machine."""
    start_time = _start_time(pid)
    return attrs.evolve(
        current_process(), pid=pid, start_time=start_time, **({} if start_time else {"host": "an unseen system"})
    )


_NO_PID = 1 << 31


@lru_cache(maxsize=1)
def _identity_of(pid: int, host: str) -> ProcessIdentity:
    """Return the identity of this process, cached: reading it takes 0.2 ms, three times a run."""
    return ProcessIdentity(host, system_id(), pid, _start_time(pid))


def is_alive(process: ProcessIdentity) -> bool | None:
    """Return whether a process is alive; None if that cannot be determined here, as on another machine.

    The name of a machine proves nothing: containers share one, and many machines keep the name of their image. So another
    boot is a reboot only of the same machine.
    """
    here = current_process()
    if process.host != here.host:
        return None
    if process.boot_id != here.boot_id:
        (boot, machine, _), (boot_here, machine_here, _) = process.system, here.system
        is_old_form = "/" not in process.boot_id
        if boot != boot_here:
            return False if is_old_form or machine == machine_here != "" else None
        if not is_old_form:
            return None
    if type(process.pid) is not int or not 0 < process.pid < _NO_PID:  # not written by a process
        return False
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it is alive, under another user
    return not process.start_time or _start_time(process.pid) == process.start_time


def send_if_expected(process: ProcessIdentity, number: int) -> bool:
    """Send a signal to a process that has a handler for it, and to no other; return whether it was sent.

    Args:
        process: the process.
        number: the signal. Without a handler it would end the process, so it is not sent.
    """
    if is_alive(process) is None or not hasattr(os, "pidfd_open"):
        return False
    try:
        descriptor = os.pidfd_open(process.pid)
    except OSError:
        return False
    try:
        if not is_alive(process) or not _handles(process.pid, number):
            return False
        signal.pidfd_send_signal(descriptor, number)
    except OSError:  # it has ended, or belongs to another user
        return False
    finally:
        os.close(descriptor)
    return True


def _handles(pid: int, number: int) -> bool:
    """Return whether a process has a handler for a signal (proc_pid_status(5), SigCgt)."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    caught = next((line.partition(":")[2] for line in lines if line.startswith("SigCgt:")), "0")
    return bool(int(caught.strip(), 16) >> (number - 1) & 1)


_INITIAL = 0xEFFFFFFC
"""The inode of the PID namespace of the whole machine (include/linux/proc_ns.h)."""


def system_id() -> str:
    """Return the `boot_id` of the processes that share the pids of this one; see `ProcessIdentity`."""
    boot, machine = _read("/proc/sys/kernel/random/boot_id"), _read("/etc/machine-id")
    if not boot:
        return ""
    if machine:  # machine-id(5): not to be shown
        machine = sha256(f"flowckpt:{machine}".encode()).hexdigest()[:8]
    namespace = _INITIAL
    with suppress(OSError):
        namespace = os.stat("/proc/self/ns/pid").st_ino  # noqa: PTH116 - half the time of a Path
    return f"{boot}/{machine}" + ("" if namespace == _INITIAL else f"/{namespace}")


def _read(file: str) -> str:
    try:
        return Path(file).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def _start_time(pid: int) -> int:
    fields = _stat_fields(pid)
    return int(fields[19]) if fields and fields[0] not in _DEAD else 0


def _stat_fields(pid: int) -> list[str]:
    """Return the fields of a process from its state on (proc_pid_stat(5)); empty if it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return text[text.rfind(")") + 2 :].split()  # the name in parentheses may contain spaces


_DEAD = ("Z", "X")
"""The states of a process that has ended but was not reaped."""


# All processes of a session: those that a command started and that did not deliberately leave it.
#
# The process group alone is not enough: coreutils' `timeout` creates its own group, and so does a shell with job control.
# The leader must not have been reaped yet: until then, its id cannot belong to another process, group or session.


_GONE = (ProcessLookupError, PermissionError)


def signal_session(leader: int, number: signal.Signals) -> None:
    """Send a signal to every process of a session."""
    with suppress(*_GONE):
        os.killpg(leader, number)
    for pid in _members(leader):
        with suppress(*_GONE):
            if os.getpgid(pid) != leader:
                _signal_member(pid, leader, number)


def hold_name(name: str) -> AbstractContextManager[object]:
    """Hold a name as long as the context lasts, and no longer than this process lives, however it ends.

    It is the name of an abstract socket (unix(7)), so it exists only on Linux, within one network namespace. A program that
    this process has forked holds it, too.
    """
    held = ExitStack()
    with suppress(OSError):
        held.enter_context(external.socket.socket(external.socket.AF_UNIX)).bind(f"\0flowckpt/{name}/{os.getpid()}")
    return held


def find_holders(name: str) -> list[int]:
    """Return the pids, in their own PID namespaces, of the processes that have taken a name that is still held."""
    try:
        held = Path("/proc/net/unix").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    found = (line.rpartition(f" @flowckpt/{name}/")[2] for line in held)
    return [int(pid) for pid in found if pid.isdecimal()]


def find_marked(variable: str) -> list[int] | None:
    """Return the living processes with a variable, as `NAME=value`, in their environment; None if no process can be seen.

    Processes of other users are seen only by root. A process that replaced its environment is not found, but one that
    waits for it is.
    """
    try:
        pids = sorted(int(name) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208 - names only
    except OSError:
        return None
    found: list[int] = []
    for pid in pids:
        with suppress(OSError):  # it has ended, or belongs to another user
            if variable.encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.append(pid)
    return found if pids else None


def signal_name(number: int) -> str:
    """Return the name of a signal; real-time signals have only a number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def has_living(leader: int) -> bool:
    """Return whether a process of a session is alive; only the leader counts if the system does not list processes."""
    return any(fields[0] not in _DEAD for fields in map(_stat_fields, _members(leader)) if fields)


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
            if os.getsid(pid) == leader:  # still true: the handle cannot refer to another process
                signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)
