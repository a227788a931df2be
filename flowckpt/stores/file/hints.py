r"""Word of the steps that were begun since the last checkpoint: what a killed process was at.

It stands in the run's lock file, which its owner holds open anyway, and is written without a sync (1 µs). The kernel
keeps it when the process dies, by `kill -9` too. After a power cut it may be missing or old, so it is a hint for people,
and decides nothing: a step that must not be done twice is marked by a durable checkpoint before it begins.

The text is the number of the attempt and the paths, a line each, and a zero byte, behind which nothing counts::

    3\nfetch\npages[17]\n\0

Where the lines of the segment are encrypted, so is each path.

It is not cleared when a checkpoint is saved, but started again at the next step: what the record holds has ended. While
a step takes long, the owner writes the first line again every ten seconds, so the time of the file is its last sign of
life.
"""

from __future__ import annotations

import contextlib
import json
import os
from binascii import a2b_base64, b2a_base64
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import attrs

from flowckpt.core.system.filesystem import FileSystem, write_all
from flowckpt.core.system.ids import new_token
from flowckpt.core.system.process import current_process
from flowckpt.errors import ForeignRecordError, WrongKeyError
from flowckpt.stores.file.layout import head_name, head_number, segment_name, temporary_name
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

    def sign(self) -> None:
        """Write the beginning of the note once more, as a sign of life: the time of the file says when."""
        if self.end:  # else the last save is the newer sign, and the note may be that of an earlier attempt
            with contextlib.suppress(OSError):
                self._filesystem.write_at(self._lock, self._head, 0)


def replace_unsynced(filesystem: FileSystem, directory: int, name: str, content: bytes) -> None:
    """Replace a file of hints as a whole, without a sync.

    Raises:
        OSError: it cannot be written; the former one is unchanged.
    """
    temporary = temporary_name(current_process(), new_token(8))
    file = filesystem.create(directory, temporary)
    try:
        try:
            write_all(filesystem, file, content)
        finally:
            filesystem.close(file)
        filesystem.rename(directory, temporary, name)
    except OSError:
        with contextlib.suppress(OSError):
            filesystem.unlink(directory, temporary)
        raise


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


# The live note: what runs now, in the file `live` of the run. Where the segment is sealed, it is sealed as a head is.


def sealed_live(content: bytes, attempt: int, seal: LineSeal, count: int) -> bytes:
    """Return a live note as a protected store has it.

    Args:
        content: the note.
        attempt: whose it is.
        seal: the seal of its segment.
        count: how many notes the attempt has written.
    """
    number = 1 << 55 | count << 24 | int.from_bytes(os.urandom(3))  # above the numbers of the started steps
    hint = b2a_base64(seal.hidden(content, number), newline=False)
    return seal.signed(b'{"flowckpt":"live","attempt":%d,"hint":"%b"' % (attempt, hint), NOTE, START) + b"}"


def opened_live(content: bytes, seal_of: Callable[[int], LineSeal | None]) -> bytes | None:
    """Return a live note of a protected store as it was before it was sealed; None if it does not open.

    Args:
        content: the content of the file.
        seal_of: returns the seal of an attempt's segment; None where it has none.
    """
    try:
        said = json.loads(content)
        seal = seal_of(said["attempt"]) if said["flowckpt"] == "live" else None
        if seal is None:
            return None
        seal.verified(content[:-1], NOTE, START)
        return seal.shown(a2b_base64(said["hint"], strict_mode=True))
    except (SealBrokenError, ValueError, LookupError, TypeError):
        return None


# Word of how far an attempt has come, outside its segment: so that the cut of its end is found.
#
# The chain of a segment proves each line by the one before. It does not prove that no line followed the last; nor
# does anything in a directory prove that no segment was taken out of it. So the owner notes, with a key, what it found
# when it began (the segment that it continues, and the digest of the last line that was acknowledged there: a later one
# may still get lost with a power cut), and then the digest of the last line that it acknowledged itself. A reader with
# the key wants to find the line.
#
# Each attempt has a file of its own, `head-` with the number of the segment and a part of its nonce: one line of JSON,
# padded to a sector, which the disk writes whole or not at all. It is there and synced before the first line of the
# attempt is written, so a run whose newest attempt has none is one that it was taken from, and the file of an earlier
# attempt proves nothing in its place. It is then written after each acknowledged line and not synced (5 µs): a power
# cut may leave an older word, which is as true and proves less. It is never ahead of the segment, as the line was synced
# before. It is synced when an owner gives the run up. The files of earlier attempts go once a line is acknowledged; a
# fenced owner that wakes up late only writes to its own.

_SIZE = 512


class TruncationGuard:
    """Notes the last acknowledged line of an attempt.

    Args:
        number: the segment.
        seal: the segment's seal.
        adopts: the segment that the attempt continues, and the digest of its last acknowledged line; may be empty.
    """

    def __init__(
        self, filesystem: FileSystem, directory: int, number: int, seal: LineSeal, adopts: tuple[int, str]
    ) -> None:
        self._filesystem = filesystem
        self._directory = directory
        self._number = number
        adopted = dict(zip(("segment", "digest"), adopts, strict=True))
        said = {"flowckpt": "head", "segment": number, **seal.said, "adopts": adopted}
        self._head = json.dumps(said, separators=(",", ":"))[:-1].encode()
        self._seal = seal
        self.name = head_name(number, seal.nonce)
        self._file: int | None = None
        self._is_alone = False

    def begin(self) -> None:
        """Make sure that there is a word, durably, in a new file: of an old one it is unknown whether its sync failed.

        Raises:
            OSError: it cannot be made durable; it must not be tried again.
        """
        filesystem = self._filesystem
        name = temporary_name(current_process(), new_token(8))
        file = filesystem.create(self._directory, name)
        try:
            write_all(filesystem, file, self._text(""))
            filesystem.sync(file)
            filesystem.rename(self._directory, name, self.name)
            filesystem.sync(self._directory)
        except BaseException:
            with contextlib.suppress(OSError):
                filesystem.unlink(self._directory, name)
            raise
        finally:
            filesystem.close(file)
        self._file = filesystem.open_lock(self._directory, self.name)  # the new file is open for appending only

    def note(self, digest: bytes) -> None:
        """Note the last acknowledged line. The line is safe, so a word that cannot be written fails nothing.

        Args:
            digest: the line's.
        """
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._filesystem.write_at(self._file, self._text(digest.hex()), 0)
                if not self._is_alone:
                    self._is_alone = True
                    self._remove_earlier()

    def _remove_earlier(self) -> None:
        for name in self._filesystem.names(self._directory):
            number = head_number(name)
            if number is not None and number <= self._number and name != self.name:
                with contextlib.suppress(FileNotFoundError):
                    self._filesystem.unlink(self._directory, name)

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


@attrs.frozen
class _Word:
    """The content of a head: the last line of the attempt, and the line that it continues."""

    digest: str
    adopted_segment: int
    adopted: str


def what_is_cut(image: RunImage, heads: Mapping[str, bytes], seals: Seals, later: Sequence[int] = ()) -> str:
    """Return what is missing at the end of a run, according to its owners; nothing where all is there.

    Args:
        image: the run, all of it, read after the words.
        heads: the words, as they are on the disk, by the name of their file.
        seals: the seals of the store.
        later: segments that are there and were not read: the process that claims a number below them will be fenced by them.

    Raises:
        WrongKeyError: a word was sealed with a key that is not at hand.
        ForeignRecordError: it is of another store.
    """
    if later:
        return ""
    wanted = _wanted(image)
    for name, head in sorted(heads.items()):
        number = head_number(name) or 0
        if not head or (name != wanted and number <= image.begun):
            continue  # a later attempt continued from there
        try:
            word = _opened(head, name, number, image.workflow_id, seals)
        except SealBrokenError as broken:
            if image.seal is None:  # no line was written yet: a power cut may have torn the first word
                continue
            return f"the word of how far the run has come does not open: {broken}"
        if number > image.begun and word.digest:
            return f"{segment_name(number)} is missing, and records in it were acknowledged"
        if number > image.begun and not _has(image, word.adopted_segment, word.adopted):
            return f"records at the end of {segment_name(word.adopted_segment)} are missing, which were continued"
        if number == image.begun and not _has(image, number, word.digest):
            return f"records at the end of {segment_name(number)} are missing, which were acknowledged"
    return "the word of how far the run has come is missing" if wanted and not heads.get(wanted) else ""


def acknowledged_in(image: RunImage, heads: Mapping[str, bytes], seals: Seals) -> tuple[int, str]:
    """Return the newest segment with a record, and the digest of its last acknowledged line as far as its owner says."""
    name = _wanted(image)
    try:
        word = _opened(heads[name], name, image.begun, image.workflow_id, seals)
    except (KeyError, SealBrokenError, WrongKeyError, ForeignRecordError):  # nothing was sealed, or it is trusted
        return image.begun, ""
    return image.begun, word.digest


def _wanted(image: RunImage) -> str:
    return "" if image.seal is None else head_name(image.begun, image.seal.nonce)


def _has(image: RunImage, number: int, digest: str) -> bool:
    if not digest or (number == image.begun and image.end.hex() == digest):
        return True
    return any(record.file == number and record.digest.hex() == digest for record in reversed(image.records))


def _opened(head: bytes, name: str, number: int, workflow_id: str, seals: Seals) -> _Word:
    body = head.rstrip()
    try:
        said = json.loads(body)
        word = _Word(said["digest"], said["adopts"]["segment"], said["adopts"]["digest"])
    except (ValueError, LookupError, TypeError) as error:
        raise SealBrokenError("it is damaged") from error
    if list(map(type, attrs.astuple(word))) != [str, int, str] or said.get("segment") != number:
        raise SealBrokenError("it is damaged")
    seal = seals.for_found(workflow_id, number, said, name)
    if seal is None or head_name(number, seal.nonce) != name:
        raise SealBrokenError("it is not authenticated")
    seal.verified(body[:-1], NOTE, START)
    return word
