r"""The lines of a segment: JSON for people, each carrying the digest that proves it and all before it.

::

    digest(0)  = 32 zero bytes
    line(n)    = BODY,"sha256":"DIGEST(n)"}\n        where BODY is a JSON object without its last brace
    digest(n)  = SHA-256(digest(n - 1) + BODY)

The digest stands at a fixed distance from the end of the line, so it is checked before a byte is parsed. It covers
every byte but itself, the quotes and braces around it (compared as they are) and the line feed (which ends the line).
"""

from __future__ import annotations

from hashlib import sha256

START = bytes(32)
MARK = b',"sha256":"'
_END = b'"}'
TRAILER = len(MARK) + 64 + len(_END)
SECTOR = 512
PACKED = b'{"packed":"'
"""The start of a body that is compressed."""
NOTE = (1 << 64) - 1
"""The number of what is signed outside the lines of a segment; no line has it."""


def chain_line(body: bytes, previous: bytes) -> tuple[bytes, bytes]:
    """Return the line of a body, line feed included, and its digest.

    Args:
        body: a JSON object without its closing brace.
        previous: the digest of the line before.
    """
    digest = sha256(previous + body).digest()
    return b'%b%b%b"}\n' % (body, MARK, digest.hex().encode("ascii")), digest


def opened(line: bytes, previous: bytes) -> bytes | None:
    """Return the digest of a line, or None where the line is not whole or not the one that followed.

    Args:
        line: the line without its line feed.
        previous: the digest of the line before.
    """
    cut = len(line) - TRAILER
    if cut < 1 or line[cut : cut + 11] != MARK or line[-2:] != _END:
        return None
    digest_so_far = sha256(previous)
    digest_so_far.update(memoryview(line)[:cut])  # a line may be as long as the run: no copies of it
    digest = digest_so_far.digest()
    return digest if digest.hex().encode("ascii") == line[cut + 11 : -2] else None


def looks_whole(line: bytes) -> bool:
    """Tell whether a line has the form of a sealed one, whatever its digest says."""
    cut = len(line) - TRAILER
    return cut >= 1 and line[:1] == b"{" and line[cut : cut + 11] == MARK and line[-2:] == _END


def is_torn(tail: bytes, offset: int) -> bool:
    """Tell a write that a crash cut short from damage.

    A torn write leaves a prefix of the record, or the record with whole sectors that never reached the disk and read
    as zeros (sectors are written whole or not at all). Anything else behind the last good line (a changed byte, a
    line feed in the wrong place, a good line behind a bad one) did not come from a crash.

    Args:
        tail: what stands behind the last good line, up to the end of the file.
        offset: where in the file it begins.
    """
    if b"\n" not in tail and not looks_whole(tail) and not looks_whole(tail[:-1]):
        return True
    if any(looks_whole(line) and 0 not in line for line in tail.split(b"\n")[1:]):
        return False
    return has_zero_sector(tail, offset)


def has_zero_sector(tail: bytes, offset: int) -> bool:
    """Tell whether a whole sector of the file, as far as it lies in the tail, is zero."""
    start = offset - offset % SECTOR
    for begin in range(start, offset + len(tail), SECTOR):
        part = tail[max(begin, offset) - offset : begin + SECTOR - offset]
        if part and not part.strip(b"\0"):
            return True
    return False
