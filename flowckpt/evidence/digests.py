"""The SHA-256 of a file, in bounded time and memory."""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from datetime import datetime
from hashlib import sha256

import attrs

from flowckpt.core.system.clock import SystemClock
from flowckpt.evidence.checks.base import (
    CheckContext,
    Deadline,
    Limits,
    RefusedClaimError,
    Settings,
    UncheckableClaimError,
)
from flowckpt.evidence.sandbox import Sandbox, format_path, kind_of

# The stat signature of a file: an unchanged file need not be read again.


Signature = tuple[int, ...]
"""(device, inode, size, mtime_ns, ctime_ns)."""

# A clock tick is at most 10 ms on current systems; a file system without fractions of a second has ticks of up to 2 s.
_FINE_NS = 20_000_000
_COARSE_NS = 2_000_000_000


def signature_of(found: os.stat_result) -> Signature:
    """Return the signature of a file."""
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def is_signature_reliable(found: os.stat_result, now: datetime) -> bool:
    """Return whether a later change would show in the signature.

    A change within the same tick of the file system's clock would not. So a fresh signature is not recorded, and the
    file is read again the next time (git calls such files racily clean).
    """
    newest = max(found.st_mtime_ns, found.st_ctime_ns)
    tick = _COARSE_NS if found.st_mtime_ns % 1_000_000_000 == 0 == found.st_ctime_ns % 1_000_000_000 else _FINE_NS
    return int(now.timestamp() * 1e9) - newest > tick


_CHUNK = 1 << 18  # the read size of hashlib.file_digest, which fits the processor's cache
_TRIES = 3


@attrs.frozen
class FileDigest:
    """The result of reading a file.

    Attributes:
        sha256: 64 hexadecimal digits, lower case.
        status: the file's status, the same before and after it was read.
    """

    sha256: str
    status: os.stat_result


def digest_file(path: str, context: CheckContext) -> FileDigest:
    """Return the digest of a file in the sandbox.

    Raises:
        RefusedClaimError: the file is too large.
        CheckTimeoutError: reading took too long.
        UncheckableClaimError: the file keeps changing.
        PathRefusedError: the path leaves the base path, or is not a regular file.
        OSError: the file does not exist, or cannot be read.
    """
    limits = context.settings.limits
    return digest_path(context.sandbox, path, limits, context.deadline_after(limits.hash_seconds))


def digest_path(sandbox: Sandbox, path: str, limits: Limits, deadline: Deadline, *, follow: bool = True) -> FileDigest:
    """Return the digest of a file; see `digest_file`."""
    for _ in range(_TRIES):
        file = sandbox.open_file(path, follow=follow)
        try:
            before = os.fstat(file)
            if before.st_size > limits.file_bytes:
                raise RefusedClaimError(
                    f"{format_path(path)} has {before.st_size} bytes, more than the limit of {limits.file_bytes}",
                    remedy="Raise Limits.file_bytes.",
                )
            found = _hash_file(file, before.st_size, deadline)
            if found is not None and signature_of(before) == signature_of(os.fstat(file)):
                return FileDigest(found, before)
        finally:
            os.close(file)
    raise UncheckableClaimError(f"{format_path(path)} is being written: it changed during each read")


def _hash_file(file: int, size: int, deadline: Deadline) -> str | None:
    """Hash `size` bytes; None if there are more or fewer, as in a growing file or in /proc."""
    if size < _CHUNK:
        data = os.read(file, size + 1)
        return sha256(data).hexdigest() if len(data) == size else None
    digest, buffer, left = sha256(), bytearray(_CHUNK), size
    view = memoryview(buffer)
    while count := os.readv(file, [buffer]):
        digest.update(view[:count])
        left -= count
        if left < 0:
            return None
        if deadline.is_over():
            deadline.left()
    return digest.hexdigest() if left == 0 else None


# The digest of a directory: names, kinds, contents of files and targets of links, all the way down.
#
# Its form is `sha256:tree:v1:` and 64 hex digits: SHA-256 over the entries in the order of their relative paths (bytes),
# each as kind, length and bytes of the path, and the content's SHA-256, or length and bytes of the link's target. Owners,
# modes and times do not count. Pipes, sockets and devices are refused: they have no content. On request, links are
# followed inside the sandbox: the file or directory counts, not the link. A link that leads nowhere, or to a directory
# that contains it, stays a link.


FORM = "sha256:tree:v1:"

_FILES_AT_ONCE = 256
_BYTES_AT_ONCE = 64 << 20
_FEW_FILES, _FEW_BYTES = 64, 8 << 20  # below these, threads cost more than they save
THREADS = min(4, os.cpu_count() or 1)


@attrs.frozen
class TreeEntry:
    """One entry below a directory.

    Attributes:
        path: its path below the directory, as bytes.
        status: its status.
        target: the target of a link; the status of a followed link is that of its target.
    """

    path: bytes
    status: os.stat_result
    target: bytes = b""

    @property
    def is_file(self) -> bool:
        """Whether it is a regular file."""
        return stat.S_ISREG(self.status.st_mode)


def list_tree(path: str, context: CheckContext, deadline: Deadline, *, follows_links: bool = False) -> list[TreeEntry]:
    """Return all entries below a directory, in the order of their paths.

    Raises:
        RefusedClaimError: the directory contains an entry without content, or is too large or too deep.
        PathRefusedError: the path, or a link that is followed, leaves the base path.
        OSError: the path is not a directory, or cannot be read.
    """
    limits, sandbox = context.settings.limits, context.sandbox
    entries: list[TreeEntry] = []
    open_directories = [(sandbox.open_directory(path), b"")]
    waiting: list[list[tuple[bytes, bool]]] = []  # subdirectories to visit, and whether each is a link, by directory
    try:
        above = _list_above(open_directories[0][0]) if follows_links else []
        while open_directories:
            directory, prefix = open_directories[-1]
            if len(waiting) < len(open_directories):
                outer = [*above, *(_identity_of(os.fstat(each)) for each, _ in open_directories)] if above else None
                waiting.append(_list_directory(directory, prefix, path, entries, sandbox, outer))
                if len(entries) > limits.tree_entries:
                    raise RefusedClaimError(
                        f"{format_path(path)} has more than {limits.tree_entries} entries",
                        remedy="Raise Limits.tree_entries, or claim its parts.",
                    )
                deadline.left()
            if not waiting[-1]:
                waiting.pop()
                os.close(open_directories.pop()[0])
                continue
            name, is_link = waiting[-1].pop()
            if len(open_directories) > limits.tree_depth:
                raise RefusedClaimError(f"{format_path(path)} is more than {limits.tree_depth} directories deep")
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            opened = (
                sandbox.open_directory(f"{path}/{os.fsdecode(prefix + name)}")
                if is_link
                else os.open(name, flags, dir_fd=directory)
            )
            open_directories.append((opened, prefix + name + b"/"))
    finally:
        for directory, _ in open_directories:
            os.close(directory)
    entries.sort(key=lambda entry: entry.path)
    return entries


def _identity_of(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _list_above(directory: int) -> list[tuple[int, int]]:
    """Return the identities of the directories that contain a directory."""
    above: list[tuple[int, int]] = []
    up = ".."
    while (found := _identity_of(os.stat(up, dir_fd=directory))) not in above:  # the root contains itself
        above.append(found)
        up += "/.."
    return above


def _list_directory(
    directory: int,
    prefix: bytes,
    path: str,
    entries: list[TreeEntry],
    sandbox: Sandbox,
    outer: list[tuple[int, int]] | None,
) -> list[tuple[bytes, bool]]:
    """Add the entries of a directory; return its subdirectories, and whether each is a link.

    Args:
        directory: the open directory.
        prefix: the path of its entries below the tree.
        path: the path of the tree.
        entries: the entries so far.
        sandbox: follows the links.
        outer: the directories that contain its entries, if links are followed.
    """
    below = []
    with os.scandir(directory) as found:
        for item in found:
            name, status = os.fsencode(item.name), item.stat(follow_symlinks=False)
            target = b""
            if stat.S_ISLNK(status.st_mode):
                target = os.fsencode(os.readlink(item.name, dir_fd=directory))
                if outer is not None:
                    status = _follow_link(sandbox, f"{path}/{os.fsdecode(prefix + name)}", status, outer)
            if stat.S_ISDIR(status.st_mode):
                below.append((name, bool(target)))
            elif not (stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)):
                raise RefusedClaimError(
                    f"{format_path(path)} holds {kind_of(status)}, {format_path(os.fsdecode(prefix + name))}: "
                    "it has no content to digest",
                    remedy="Claim the files around it one by one.",
                )
            entries.append(TreeEntry(prefix + name, status, target))
    return below


def _follow_link(sandbox: Sandbox, link: str, status: os.stat_result, outer: list[tuple[int, int]]) -> os.stat_result:
    """Return the status of a link's target; that of the link if it leads nowhere, or to a directory that contains it."""
    try:
        found = sandbox.status(link)
    except (FileNotFoundError, NotADirectoryError):
        return status
    return status if _identity_of(found) in outer else found


def stat_digest(entries: Iterable[TreeEntry]) -> str:
    """Return the digest of the signatures of a tree: an unchanged tree need not be read again."""
    # One text per entry: a tuple for each signature would take 2 µs per entry.
    lines = [(entry.path, entry.target, signature_of(entry.status)) for entry in entries]
    return sha256(repr(lines).encode("ascii")).hexdigest()


def content_digest(entries: Sequence[TreeEntry], contents: Sequence[str]) -> str:
    """Return the digest of a tree.

    Args:
        entries: its entries, in the order of their paths.
        contents: the SHA-256 of each file, and an empty text for each other entry.
    """
    digest = sha256()
    for entry, content in zip(entries, contents, strict=True):
        if entry.is_file:
            kind, rest = b"f", bytes.fromhex(content)
        elif stat.S_ISLNK(entry.status.st_mode):
            kind, rest = b"l", struct.pack(">Q", len(entry.target)) + entry.target
        else:
            kind, rest = b"d", b""
        digest.update(kind + struct.pack(">Q", len(entry.path)) + entry.path + rest)
    return FORM + digest.hexdigest()


def file_digests(path: str, entries: Sequence[TreeEntry], context: CheckContext, deadline: Deadline) -> list[str]:
    """Return the SHA-256 of each file, and an empty text for each other entry; large trees in parallel."""
    chunks = list(_split_entries(entries))
    size = sum(entry.status.st_size for entry in entries if entry.is_file)
    found: dict[bytes, str] = {}
    if context.executor is None and (len(entries) <= _FEW_FILES or THREADS == 1) and size <= _FEW_BYTES:
        for chunk in chunks:
            found.update(digest_chunk(context.settings, path, chunk, deadline.left()))
    elif context.executor is not None:
        found.update(_digest_in_parallel(context.executor, path, chunks, context, deadline))
    else:
        with ThreadPoolExecutor(THREADS, "flowckpt-digest") as pool:
            found.update(_digest_in_parallel(pool, path, chunks, context, deadline))
    return [found[entry.path] if entry.is_file else "" for entry in entries]


Chunk = list[tuple[bytes, Signature, bool]]
"""Paths of files, their signatures, and whether each is reached by a link of that path."""


def _split_entries(entries: Iterable[TreeEntry]) -> Iterable[Chunk]:
    chunk: Chunk = []
    size = 0
    for entry in entries:
        if entry.is_file:
            chunk.append((entry.path, signature_of(entry.status), bool(entry.target)))
            size += entry.status.st_size
            if len(chunk) >= _FILES_AT_ONCE or size >= _BYTES_AT_ONCE:
                yield chunk
                chunk, size = [], 0
    if chunk:
        yield chunk


def _digest_in_parallel(
    executor: Executor, path: str, chunks: Sequence[Chunk], context: CheckContext, deadline: Deadline
) -> dict[bytes, str]:
    found: dict[bytes, str] = {}
    seconds = deadline.left()
    pending: list[Future[dict[bytes, str]]] = [
        executor.submit(digest_chunk, context.settings, path, chunk, seconds) for chunk in chunks
    ]
    try:
        for future in pending:
            found.update(future.result(timeout=deadline.left()))
    finally:
        for future in pending:
            future.cancel()
    return found


def digest_chunk(settings: Settings, path: str, chunk: Chunk, seconds: float) -> dict[bytes, str]:
    """Return the digests of some files of a tree; runs on any worker that sees the same files.

    Args:
        settings: the permissions.
        path: the path of the directory.
        chunk: files below it, as they were listed.
        seconds: the time limit.
    """
    clock = SystemClock()
    deadline = Deadline(clock.elapsed_ns, clock.elapsed_ns() + int(seconds * 1e9), settings.limits.hash_seconds)
    digests = {}
    with Sandbox(settings.base_path, allow_absolute=settings.allow_absolute) as sandbox:
        for below, signature, is_link in chunk:
            whole = f"{path}/{os.fsdecode(below)}"
            found = digest_path(sandbox, whole, settings.limits, deadline, follow=is_link)
            # Device numbers differ between machines; the other parts are the same on every worker.
            if signature_of(found.status)[1:] != signature[1:]:
                raise UncheckableClaimError(f"{format_path(whole)} changed while its directory was read")
            digests[below] = found.sha256
    return digests
