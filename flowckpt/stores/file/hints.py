r"""Word of the steps that were begun since the last checkpoint: what a killed process was at.

It stands in the run's lock file, which its owner holds open anyway, and is written without a sync (1 µs). The kernel
keeps it when the process dies, by `kill -9` too. After a power cut it may be missing or old, so it is a hint for people,
and decides nothing: a step that must not be done twice is marked by a durable checkpoint before it begins.

The text is the number of the attempt and the paths, a line each, and a zero byte, behind which nothing counts::

    3\nfetch\npages[17]\n\0

Where the lines of the segment are encrypted, so is each path.

It is not cleared when a checkpoint is saved, but begun anew at the next step: what the record holds has ended.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from flowckpt.core.system.filesystem import FileSystem, write_all
from flowckpt.core.system.ids import new_token
from flowckpt.core.system.process import current_process
from flowckpt.stores.file.layout import HEAD, segment_name, temporary_name
from flowckpt.stores.log.image import RunImage
from flowckpt.stores.log.line import NOTE, START
from flowckpt.stores.log.sealing.protection import SealBrokenError, Seals

if TYPE_CHECKING:
    from flowckpt.stores.log.sealing.lines import LineSeal


MOST = 1 << 16
"""The most bytes of the text, twice as many if paths are encrypted; steps that start beyond them, without a checkpoint, are not noted."""


class StartedSteps:
    """Notes the steps that an attempt starts.

    Args:
        lock: the run's lock file, open for writing.
        seal: the seal of its segment, if there is one.

    Attributes:
        end: where the next note goes; set it to 0 once a checkpoint holds what became of the steps.
    """

    def __init__(self, filesystem: FileSystem, lock: int, attempt: int, seal: LineSeal | None = None) -> None:
        self._filesystem = filesystem
        self._lock = lock
        self._head = b"%d\n" % attempt
        self.end = 0
        self._seal = seal
        self._count = 0

    def add(self, path: str) -> None:
        """Note a step; a full disk fails nothing.

        Args:
            path: the step.
        """
        start = self.end
        text = path.encode("utf-8", "replace")
        if self._seal is not None:
            self._count += 1  # over the whole attempt, for it is a nonce; a forked child has the same count
            text = self._seal.hidden(text, self._count << 24 | int.from_bytes(os.urandom(3)))
        line = b"%b\n\0" % text if start else b"%b%b\n\0" % (self._head, text)
        end = start + len(line)
        if end <= (MOST if self._seal is None else 2 * MOST):
            try:  # not contextlib.suppress, which takes as long as half the write
                self._filesystem.write_at(self._lock, line, start)
            except OSError:
                return
            self.end = end - 1


def started_in(content: bytes, seal_of: Callable[[int], LineSeal | None] | None = None) -> tuple[int, tuple[str, ...]]:
    """Return the attempt that left word, and the steps; attempt 0 where there is no word, or no sense in it.

    Args:
        content: the content of a lock file.
        seal_of: returns the seal of an attempt's segment; None where it has none, or cannot be had.
    """
    text, end, _ = content.partition(b"\0")
    head, *paths = text.split(b"\n")
    if not end or not head.isascii() or not head.isdigit() or not paths or paths.pop():
        return 0, ()
    attempt = int(head)
    try:
        seal = None if seal_of is None else seal_of(attempt)
        shown = [path if seal is None else seal.shown(path) for path in paths]
    except SealBrokenError:
        return 0, ()
    return attempt, tuple(dict.fromkeys(path.decode("utf-8", "replace") for path in shown))


# Word of how far a run has come, outside its segments: so that the cut of its end is found.
#
# The chain of a segment proves each line by the one before. It does not prove that there was none behind the last; nor
# does anything in a directory prove that no segment was taken out of it. So the owner notes, with a key, which segment it
# is at and the digest of the last line that it acknowledged. A reader with the key wants to find that line.
#
# The file `head` is one line of JSON, padded to a sector, which the disk writes whole or not at all. It is written behind
# each acknowledged line and not synced (5 µs): a power cut may leave an older word, which is as true and proves less. It
# is never ahead of the segment, as the line was synced before. It is there and synced before the first line of an attempt
# is written, so a run without it is one that it was taken from; and it is synced when an owner gives the run up.

_SIZE = 512


class TruncationGuard:
    """Notes the last acknowledged line of an attempt.

    Args:
        number: the segment.
        said: what the segment's header says of its seal.
        seal: the segment's seal.
        is_kept: whether the word of the attempt before, which was verified, stays until a line is acknowledged.
    """

    def __init__(
        self,
        filesystem: FileSystem,
        directory: int,
        number: int,
        said: dict[str, Any],
        seal: LineSeal,
        *,
        is_kept: bool,
    ) -> None:
        self._filesystem = filesystem
        self._directory = directory
        self._head = json.dumps({"flowckpt": "head", "segment": number, **said}, separators=(",", ":"))[:-1].encode()
        self._seal = seal
        self._is_kept = is_kept
        self._file: int | None = None

    def begin(self) -> None:
        """Make sure that there is a word, durably, in a new file: of an old one nobody knows whether its sync failed.

        Raises:
            OSError: it cannot be made durable; it must not be tried again.
        """
        filesystem = self._filesystem
        there = b""
        if self._is_kept:
            file = filesystem.open_read(self._directory, HEAD)
            try:
                there = filesystem.read(file, _SIZE, 0)
            finally:
                filesystem.close(file)
        text = there if len(there) == _SIZE else self._text("")
        name = temporary_name(current_process(), new_token(8))
        file = filesystem.create(self._directory, name)
        try:
            write_all(filesystem, file, text)
            filesystem.sync(file)
            filesystem.rename(self._directory, name, HEAD)
            filesystem.sync(self._directory)
        except BaseException:
            with contextlib.suppress(OSError):
                filesystem.unlink(self._directory, name)
            raise
        finally:
            filesystem.close(file)
        self._file = filesystem.open_lock(self._directory, HEAD)  # the new file is open for appending only

    def note(self, digest: bytes) -> None:
        """Note the last acknowledged line. The line is safe, so a word that cannot be written fails nothing.

        Args:
            digest: the line's.
        """
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._filesystem.write_at(self._file, self._text(digest.hex()), 0)

    def close(self, *, is_end: bool) -> None:
        """Close the file.

        Args:
            is_end: whether the owner gives the run up, so that the word is worth a sync.
        """
        file, self._file = self._file, None
        if file is not None:
            if is_end:
                with contextlib.suppress(OSError):
                    self._filesystem.sync_data(file)
            self._filesystem.close(file)

    def _text(self, digest: str) -> bytes:
        body = self._seal.signed(b'%b,"digest":"%b"' % (self._head, digest.encode()), NOTE, START)
        return (body + b"}").ljust(_SIZE - 1) + b"\n"


def what_is_cut(image: RunImage, head: bytes | None, seals: Seals, later: Sequence[int] = ()) -> str:
    """Return what is missing at the end of a run, according to the word of its last owner; nothing where all is there.

    Args:
        image: the run, all of it, read after the word.
        head: the word, as it is on the disk; None where there is none.
        seals: the seals of the store.
        later: segments that are there and were not read: whoever claims a number below them will be fenced by them.

    Raises:
        WrongKeyError: the word was sealed with a key that is not at hand.
        ForeignRecordError: it is of another store.
    """
    if not head:
        return "the word of how far the run has come is missing" if image.seal is not None else ""
    try:
        number, digest = _opened(head, image.workflow_id, seals)
    except SealBrokenError as broken:
        if image.seal is None:  # no line was written yet: a power cut may have torn the first word
            return ""
        return f"the word of how far the run has come does not open: {broken}"
    if not digest or number < image.begun or number in later:
        return ""  # nothing was acknowledged by then, or a later attempt went on from there, or it is at it now
    if number > image.begun:
        return f"{segment_name(number)} is missing, and records in it were acknowledged"
    if image.end.hex() == digest:
        return ""
    if any(record.file == number and record.digest.hex() == digest for record in reversed(image.records)):
        return ""
    return f"records at the end of {segment_name(number)} are missing, which were acknowledged"


def _opened(head: bytes, workflow_id: str, seals: Seals) -> tuple[int, str]:
    body = head.rstrip()
    try:
        said = json.loads(body)
        number, digest = said["segment"], said["digest"]
    except (ValueError, LookupError, TypeError) as error:
        raise SealBrokenError("it is damaged") from error
    if type(number) is not int or type(digest) is not str:
        raise SealBrokenError("it is damaged")
    seal = seals.for_found(workflow_id, number, said, HEAD)
    if seal is None:
        raise SealBrokenError("it is not authenticated")
    seal.verified(body[:-1], NOTE, START)
    return number, digest
