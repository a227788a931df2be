"""The SHA-256 of a file, in bounded time and memory."""

from __future__ import annotations

import os
from hashlib import sha256

import attrs

from flowckpt.evidence.checks.base import CheckContext, Deadline, RefusedClaimError, UncheckableClaimError
from flowckpt.evidence.sandbox import Sandbox, shown_path
from flowckpt.evidence.settings import Limits
from flowckpt.evidence.signature import signature_of

_CHUNK = 1 << 18  # what hashlib.file_digest reads at once; it fits the processor's cache
_TRIES = 3


@attrs.frozen
class FileDigest:
    """What was read.

    Attributes:
        sha256: 64 hexadecimal digits, lower case.
        status: the file's status, the same before and after it was read.
    """

    sha256: str
    status: os.stat_result


def digest_file(path: str, context: CheckContext, *, follow: bool = True) -> FileDigest:
    """Return the digest of a file in the sandbox.

    Args:
        path: the path of a claim.
        context: what may be used.
        follow: whether the last component may be a link.

    Raises:
        RefusedClaimError: it is too large.
        CheckTimeoutError: it took too long.
        UncheckableClaimError: it changes all the time.
        PathRefusedError: it leads out, or is no regular file.
        OSError: nothing is there, or it cannot be read.
    """
    limits = context.settings.limits
    return digest_path(context.sandbox, path, limits, context.deadline_after(limits.hash_seconds), follow=follow)


def digest_path(sandbox: Sandbox, path: str, limits: Limits, deadline: Deadline, *, follow: bool = True) -> FileDigest:
    """Return the digest of a file; see `digest_file`.

    Args:
        sandbox: the files that may be seen.
        path: the path.
        limits: the limit of its size.
        deadline: the end of the time.
        follow: whether the last component may be a link.
    """
    for _ in range(_TRIES):
        file = sandbox.open_file(path, follow=follow)
        try:
            before = os.fstat(file)
            if before.st_size > limits.file_bytes:
                raise RefusedClaimError(
                    f"{shown_path(path)} has {before.st_size} bytes, more than the limit of {limits.file_bytes}",
                    remedy="Raise Limits.file_bytes.",
                )
            found = _read(file, before.st_size, deadline)
            if found is not None and signature_of(before) == signature_of(os.fstat(file)):
                return FileDigest(found, before)
        finally:
            os.close(file)
    raise UncheckableClaimError(f"{shown_path(path)} is being written: it changed each time while it was read")


def _read(file: int, size: int, deadline: Deadline) -> str | None:
    """Hash at most `size` bytes; None where there are more or fewer, as in a file that grows, or one of /proc."""
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
