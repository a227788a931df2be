r"""Word of how far a run has come, outside its segments: so that the cut of its end is found.

The chain of a segment proves each line by the one before. It does not prove that there was none behind the last; nor
does anything in a directory prove that no segment was taken out of it. So the owner notes, with a key, which segment it
is at and the digest of the last line that it acknowledged. A reader with the key wants to find that line.

The file `head` is one line of JSON, padded to a sector, which the disk writes whole or not at all. It is written behind
each acknowledged line and not synced (5 µs): a power cut may leave an older word, which is as true and proves less. It
is never ahead of the segment, as the line was synced before. It is there and synced before the first line of an attempt
is written, so a run without it is one that it was taken from; and it is synced when an owner gives the run up.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from secrets import token_hex
from typing import Any

from flowckpt.core.system.filesystem import FileSystem
from flowckpt.core.system.process import current_process
from flowckpt.stores.file.layout import HEAD, segment_name, temporary_name
from flowckpt.stores.log.image import RunImage
from flowckpt.stores.log.line import START
from flowckpt.stores.log.sealing.lines import NOTE, LineSeal
from flowckpt.stores.log.sealing.protection import SealBrokenError, Seals

_SIZE = 512


class HeadNote:
    """Notes the last acknowledged line of an attempt.

    Args:
        filesystem: the calls.
        directory: the run's directory, open.
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
        name = temporary_name(current_process(), token_hex(8))
        file = filesystem.create(self._directory, name)
        try:
            written = 0
            while written < len(text):
                written += filesystem.write(file, text[written:])
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
