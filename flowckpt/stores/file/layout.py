"""Names in the store's directories; paths are made from ids only here."""

from __future__ import annotations

import errno
import re
from hashlib import sha256

from flowckpt.core.system.process import ProcessIdentity, is_alive

RUNS = "runs"
LOCK = "lock"
BLOBS = "blobs"
SIGNALS = "signals"
INDEX = "index"
RESERVE = "reserve"
LIVE = "live"
HEAD = "head-"
IDENTITY = "store.json"

NOT_OURS = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EMLINK, errno.EINVAL, errno.ENXIO)
"""The errors of opening a name that is not a regular file. Other errors do not show what the name is."""

# `re` compiles and caches each on first use, which takes 0.2 ms. So the beginning of a name is checked first.
_PLAIN_ID = frozenset("abcdefghijklmnopqrstuvwxyz0123456789_-")
_SEGMENT = r"[1-9][0-9]{8,}\.jsonl"
_ULID = r"[0-9A-HJKMNP-TV-Z]{26}"
_SIGNAL = r"([0-9a-hjkmnp-tv-z]{26}|h\.[0-9a-f]{64})\.json"
_MARK = r"\.fenced-([0-9]{8}|[1-9][0-9]{8,})-([0-9]+)"
_RELEASED = r"\.released-([0-9]{8}|[1-9][0-9]{8,})-([0-9]+)"
_PIN = r"pin-([0-9]+)"
_VALUE = r"[0-9a-f]{64}(?:\.[a-z]+)?"
_KEYS = r"keys-([0-9]{8}|[1-9][0-9]{8,})\.json"
_ORPHAN = r"\.orphan-([0-9]+)-([0-9a-f]{64}(?:\.[a-z]+)?)"
_HEAD = r"head-([0-9]{8}|[1-9][0-9]{8,})-[0-9a-f]{16}"
_TEMPORARY = r"\.new-([0-9a-f]{8}(?:n[0-9]+)?)-([0-9]+)-([0-9]+)-[0-9a-f]+"


def keys_name(number: int) -> str:
    """Return the name of a note of the store's keys, next to its identity."""
    return f"keys-{number:08d}.json"


def keys_numbers(names: list[str]) -> list[int]:
    """Return the ascending numbers of the notes of keys among names."""
    return sorted(int(match[1]) for name in names if name[:5] == "keys-" and (match := re.fullmatch(_KEYS, name)))


def run_directory(workflow_id: str) -> str:
    """Return the directory of a run.

    Ids of up to 64 lower-case letters, digits, `_` and `-` are used as they are; every other id is hashed, with a
    prefix that contains a dot. So no id can name another place, and no two ids share a directory on a case-insensitive
    file system. Each segment's header has the true id, which is compared when it is read.

    Args:
        workflow_id: any text.
    """
    if 0 < len(workflow_id) <= 64 and _PLAIN_ID.issuperset(workflow_id):
        return workflow_id
    return "h." + sha256(workflow_id.encode("utf-8", "surrogatepass")).hexdigest()


def segment_name(number: int) -> str:
    """Return the name of an attempt's segment."""
    return f"{number:08d}.jsonl"


def segment_numbers(names: list[str]) -> list[int]:
    """Return the ascending numbers of the segments among names."""
    return sorted(int(name[:-6]) for name in names if name[-6:] == ".jsonl" and _is_segment(name))


def _is_segment(name: str) -> bool:
    if len(name) == 14:
        return name[:8].isascii() and name[:8].isdigit()
    return re.fullmatch(_SEGMENT, name) is not None


def signal_name(signal_id: str) -> str:
    """Return the name of a message's file: a ULID in lower case, or the hash of any other id."""
    if re.fullmatch(_ULID, signal_id):
        return f"{signal_id.lower()}.json"
    return f"h.{sha256(signal_id.encode('utf-8', 'surrogatepass')).hexdigest()}.json"


def is_signal(name: str) -> bool:
    """Return whether a name is that of a message."""
    return re.fullmatch(_SIGNAL, name) is not None


def mark_name(number: int, inode: int) -> str:
    """Return the second name of a segment below a claimed one; `run_writer` explains its purpose.

    The name belongs to one file only: while a file is open or has this name, its inode number is not reused. So a
    writer that was suspended while its run was cleared and started again cannot remove a mark that a claimer of the new
    run set.

    Args:
        number: the segment.
        inode: the number of its file.
    """
    return f".fenced-{number:08d}-{inode}"


def parse_mark(name: str) -> int | None:
    """Return the segment of a mark, or None if the name is not a mark.

    Args:
        name: a name in the directory.
    """
    return _parse_number(".fenced-", _MARK, name)


def released_name(number: int, inode: int) -> str:
    """Return the name of the empty file that marks a segment's writer as released.

    Only an owner that took the run over needs it, because the previous owner may still hold the lock for a long time.
    Like a mark, the name belongs to one file only.

    Args:
        number: the segment.
        inode: the number of its file.
    """
    return f".released-{number:08d}-{inode}"


def parse_release(name: str) -> int | None:
    """Return the segment whose writer was released, or None for any other name.

    Args:
        name: a name in the directory.
    """
    return _parse_number(".released-", _RELEASED, name)


def pin_name(sequence: int) -> str:
    """Return the name of the empty file that pins a checkpoint."""
    return f"pin-{sequence}"


def pinned_sequences(names: list[str]) -> frozenset[int]:
    """Return the sequences of pinned checkpoints, from the names in a run's directory."""
    return frozenset(int(match[1]) for name in names if name[:4] == "pin-" and (match := re.fullmatch(_PIN, name)))


def is_value(name: str) -> bool:
    """Return whether a name is that of a large value, sealed or not."""
    return re.fullmatch(_VALUE, name) is not None


def orphan_name(inode: int, name: str) -> str:
    """Return the temporary name of a large value that is being removed; `compaction` explains its purpose.

    Args:
        inode: the number of its file.
        name: its name until now.
    """
    return f".orphan-{inode}-{name}"


def parse_orphan(name: str) -> tuple[int, str] | None:
    """Return the inode and the original name of a large value that was being removed; None for other names.

    Args:
        name: a name in the directory of large values.
    """
    match = re.fullmatch(_ORPHAN, name) if name[:8] == ".orphan-" else None
    return None if match is None else (int(match[1]), match[2])


def head_name(number: int, nonce: str) -> str:
    """Return the name of an attempt's head file, which notes its last acknowledged line.

    Args:
        number: its segment.
        nonce: the random part of the segment's seal, so that the name is unique even if the number is reused.
    """
    return f"{HEAD}{number:08d}-{nonce[:16]}"


def parse_head_number(name: str) -> int | None:
    """Return the segment of a head file; None for any other name."""
    return _parse_number(HEAD, _HEAD, name)


def _parse_number(prefix: str, pattern: str, name: str) -> int | None:
    match = re.fullmatch(pattern, name) if name.startswith(prefix) else None
    return None if match is None else int(match[1])


def temporary_name(process: ProcessIdentity, token: str) -> str:
    """Return a name for an unfinished file; it contains the process, so that a later sweep can find abandoned files.

    Args:
        process: the process that makes the file.
        token: random hex digits.
    """
    return f".new-{_name_of_pids(process)}-{process.pid}-{process.start_time}-{token}"


def is_abandoned(name: str, here: ProcessIdentity) -> bool:
    """Return whether a name is that of an unfinished file or directory whose process is known to be dead.

    Args:
        name: a name in the directory.
        here: this process; the store is a local directory, so the other process ran on the same machine.
    """
    match = re.fullmatch(_TEMPORARY, name) if name[:5] == ".new-" else None
    if match is None:
        return False
    pids = _name_of_pids(here)
    if match[1][:_BOOT] != pids[:_BOOT]:
        return True
    maker = ProcessIdentity(here.host, here.boot_id, int(match[2]), int(match[3]))
    return match[1] == pids and maker != here and is_alive(maker) is False


_BOOT = 8


def _name_of_pids(process: ProcessIdentity) -> str:
    """Return the boot and the PID namespace in which the pid of a process is unique, for a file name."""
    boot, _, rest = process.boot_id.partition("/")
    namespace = rest.partition("/")[2]
    return sha256(boot.encode()).hexdigest()[:_BOOT] + (f"n{namespace}" if namespace else "")
