r"""The directory of a run: its lock, its segments, the writer of the newest, and the hints that stand there.

Word of the steps that were begun since the last checkpoint says what a killed process was at. It stands in the run's lock
file, which its owner holds open anyway, and is written without a sync (1 µs). The kernel keeps it when the process dies, by
`kill -9` too. After a power cut it may be missing or old, so it is a hint for people, and decides nothing: a step that must
not be done twice is marked by a durable checkpoint before it begins.

The text is the number of the attempt and the paths, a line each, and a zero byte, behind which nothing counts::

    3\nfetch\npages[17]\n\0

Where the lines of the segment are encrypted, so is each path.

It is not cleared when a checkpoint is saved, but started again at the next step: what the record holds has ended. While
a step takes long, the owner writes the first line again every ten seconds, so the time of the file is its last sign of
life.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import time
from binascii import a2b_base64, b2a_base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import attrs

from flowckpt.core.codec.blob import Fetch
from flowckpt.core.records.listing import Owner
from flowckpt.core.system.attrs_base import lazy_frozen
from flowckpt.core.system.declared import shell_word
from flowckpt.core.system.filesystem import FileSystem, held_open, open_if_there, write_all
from flowckpt.core.system.ids import new_token
from flowckpt.core.system.process import current_process
from flowckpt.errors import CheckpointCorruptedError, ForeignRecordError, WrongKeyError
from flowckpt.stores.file.layout import (
    HEAD,
    NOT_OURS,
    head_name,
    head_number,
    is_abandoned,
    mark_name,
    released_name,
    released_segment,
    segment_name,
    segment_numbers,
    temporary_name,
)
from flowckpt.stores.log.image import RunImage, read_run
from flowckpt.stores.log.sealing.protection import PLAIN, SealBrokenError, Seals
from flowckpt.stores.log.segment import NOTE, START, SegmentDamagedError, read_header

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
        self._most = MOST if seal is None else 2 * MOST
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
        line = (text if start else self._head + text) + b"\n\0"
        end = start + len(line)
        if end <= self._most:
            try:  # not contextlib.suppress, which takes as long as half the write
                self._filesystem.write_at(self._lock, line, start)
            except OSError:
                return
            self.end = end - 1

    def sign(self) -> None:
        """Write the beginning of the note again, as a heartbeat: the time of the file says when."""
        if self.end:  # else the last save is the newer sign, and the note may be that of an earlier attempt
            with contextlib.suppress(OSError):
                self._filesystem.write_at(self._lock, self._head, 0)


@contextlib.contextmanager
def temporary_file(filesystem: FileSystem, directory: int) -> Iterator[tuple[int, str]]:
    """Make a file under a random name, open for the block, which gives it its name; after an error it is removed."""
    name = temporary_name(current_process(), new_token(8))
    file = filesystem.create(directory, name)
    try:
        with held_open(filesystem, file):
            yield file, name
    except BaseException:
        with contextlib.suppress(OSError):
            filesystem.unlink(directory, name)
        raise


def replace_unsynced(filesystem: FileSystem, directory: int, name: str, content: bytes) -> None:
    """Replace a file of hints as a whole, without a sync.

    Raises:
        OSError: it cannot be written; the former one is unchanged.
    """
    with temporary_file(filesystem, directory) as (file, temporary):
        write_all(filesystem, file, content)
        filesystem.rename(directory, temporary, name)


def write_new(filesystem: FileSystem, directory: int, name: str, content: bytes) -> bool:
    """Write a synced file, which then gets its name, unless there is one of that name; return whether it is new.

    The name is durable once the caller has synced the directory.
    """
    temporary = temporary_name(current_process(), new_token(8))
    file = filesystem.create(directory, temporary)
    try:
        write_all(filesystem, file, content)
        filesystem.sync(file)
        filesystem.link(directory, temporary, name)
    except FileExistsError:
        return False
    finally:
        filesystem.close(file)
        with contextlib.suppress(OSError):
            filesystem.unlink(directory, temporary)
    return True


def sweep_abandoned(filesystem: FileSystem, directory: int) -> None:
    """Remove the temporary files of processes that died."""
    here = current_process()
    for name in filesystem.names(directory):
        if is_abandoned(name, here):
            with contextlib.suppress(FileNotFoundError):
                filesystem.unlink(directory, name)


_MOST_DIGITS = 15
"""Of the number of an attempt: a name of a segment is made of it."""


def started_in(content: bytes, seal_of: Callable[[int], LineSeal | None] | None = None) -> tuple[int, tuple[str, ...]]:
    """Return the attempt that left word, and the steps; attempt 0 if the note is missing or unreadable.

    Args:
        content: the content of a lock file.
        seal_of: returns the seal of an attempt's segment; None if it has none, or cannot be had.
    """
    text, end, _ = content.partition(b"\0")
    head, *paths = text.split(b"\n")
    if not end or not head.isascii() or not head.isdigit() or len(head) > _MOST_DIGITS or not paths or paths.pop():
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
    """Return a live note of a protected store as it was before sealing; None if it does not open.

    Args:
        content: the content of the file.
        seal_of: returns the seal of an attempt's segment; None if it has none.
    """
    try:
        said = json.loads(content)
        attempt = said["attempt"] if said["flowckpt"] == "live" else None
        seal = seal_of(attempt) if type(attempt) is int and 0 < attempt < 10**_MOST_DIGITS else None
        if seal is None:
            return None
        seal.verified(content[:-1], NOTE, START)
        return seal.shown(a2b_base64(said["hint"], strict_mode=True))
    except (SealBrokenError, ValueError, LookupError, TypeError, RecursionError):
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
        with temporary_file(filesystem, self._directory) as (file, name):
            write_all(filesystem, file, self._text(""))
            filesystem.sync(file)
            filesystem.rename(self._directory, name, self.name)
            filesystem.sync(self._directory)
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


@lazy_frozen()
class _Word:
    """The content of a head: the last line of the attempt, and the line that it continues."""

    digest: str
    adopted_segment: int
    adopted: str


def what_is_cut(image: RunImage, heads: Mapping[str, bytes], seals: Seals, later: Sequence[int] = ()) -> str:
    """Return what is missing at the end of a run, according to its owners; nothing if all is there.

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


_STEP = 16 * 1024
"""Bytes; most headers are of a few hundred."""


MOST_HINT = 32 * 1024 * 1024
"""Bytes of the largest hint that is read: more than flowckpt writes."""


def read_file(filesystem: FileSystem, directory: int, name: str, most: int | None = None) -> bytes:
    """Return the bytes of a file in a directory.

    Args:
        filesystem: the calls.
        directory: the directory, open.
        name: the file.
        most: how large a hint may be; a larger one is damaged, and counts as empty.
    """
    with held_open(filesystem, filesystem.open_read(directory, name)) as file:
        size = filesystem.status(file).size
        return b"" if most is not None and size > most else filesystem.read(file, size, 0)


def read_lines(filesystem: FileSystem, directory: int, name: str, count: int) -> bytes:
    """Return the beginning of a file, with so many lines at least, where it has them, and not the whole of a long one.

    Args:
        filesystem: the calls.
        directory: the file's directory, open.
        name: the file.
        count: how many lines.
    """
    with held_open(filesystem, filesystem.open_read(directory, name)) as file:
        size = _STEP
        while True:
            data = filesystem.read(file, size, 0)
            if data.count(b"\n") >= count or len(data) < size:
                return data
            size *= 8


def read_image(
    filesystem: FileSystem,
    directory: int,
    workflow_id: str,
    fetch: Fetch,
    below: int | None = None,
    *,
    seals: Seals = PLAIN,
    attempt: int | None = None,
    known: RunImage | None = None,
) -> RunImage:
    """Read the run in a directory, from all its segments or those below a number.

    Args:
        filesystem: the calls.
        directory: the run's directory, open.
        workflow_id: the run.
        fetch: reads large values.
        below: only segments below this number are read; None for all.
        seals: the seals of the store.
        attempt: as this attempt left it, whose end is unknown; as it is now where not given.
        known: the run as read before; taken if its bytes are the same.

    Raises:
        CheckpointCorruptedError: a record is damaged, or was taken away.
        FileNotFoundError: it was cleared or compacted meanwhile; look again.
    """
    is_compared = attempt is None and seals.has_key and not seals.protection.is_trusting

    def there() -> list[int]:
        return segment_numbers(filesystem.names(directory))

    while True:
        # The word first: it is never ahead of what it tells of.
        heads = heads_in(filesystem, directory) if is_compared else {}
        found = [] if below == 1 and not is_compared else there()  # a run that is claimed for the first time
        numbers = [number for number in found if below is None or number < below]
        try:
            image = read_run(
                workflow_id,
                numbers,
                lambda number: read_file(filesystem, directory, segment_name(number)),
                fetch,
                seals,
                attempt=attempt,
                known=known,
            )
        except CheckpointCorruptedError:
            if there() != found:  # a list made during a compaction may lack the new segment and an old one, too
                raise FileNotFoundError(errno.ENOENT, "a segment was removed meanwhile") from None
            raise
        if not is_compared or image.is_cleared:
            return image
        later = [number for number in found if below is not None and number > below]
        missing = what_is_cut(image, heads, seals, later)
        if not missing:
            return image
        # Else the run was begun, or cleared and started again, or compacted, meanwhile.
        if heads_in(filesystem, directory) == heads and there() == found:
            raise _cut_off(workflow_id, missing, max(heads, default=HEAD))


def _cut_off(workflow_id: str, missing: str, location: str) -> CheckpointCorruptedError:
    way = f"'flowckpt store trust {shell_word(workflow_id)}'"
    remedy = f"Restore the run from a backup, its 'head-' files too. If you know that it is whole: {way}."
    return CheckpointCorruptedError(workflow_id, location=location, detail=missing, remedy=remedy)


def heads_in(filesystem: FileSystem, directory: int) -> dict[str, bytes]:
    """Return what the files in a run's directory say of how far its attempts have come, by name."""
    found = {}
    for name in filesystem.names(directory):
        if head_number(name) is not None:
            with contextlib.suppress(FileNotFoundError):
                found[name] = read_file(filesystem, directory, name)
    return found


def give_up_segment(filesystem: FileSystem, directory: int, file: int, number: int) -> None:
    """Remove a claimed segment that nothing was written to, and the mark that another claimer may have set on it.

    The run may have been cleared and started again in this directory while the claimer slept; then the segment of this
    number is another owner's, and stays.

    Args:
        filesystem: the calls.
        directory: the run's directory.
        file: the segment's file, open.
        number: the segment.
    """
    with contextlib.suppress(OSError):
        if filesystem.is_named(file, directory, segment_name(number)):
            filesystem.unlink(directory, segment_name(number))
        if (status := filesystem.status(file)).links:
            filesystem.unlink(directory, mark_name(number, status.inode))


def note_release(filesystem: FileSystem, directory: int, file: int, number: int) -> None:
    """Note that a segment's writer, which never had the lock, has given the run up. Nothing is synced: see `is_released`.

    Args:
        filesystem: the calls.
        directory: the run's directory.
        file: the segment's file, open.
        number: the segment.
    """
    if filesystem.is_named(file, directory, segment_name(number)):
        filesystem.close(filesystem.create(directory, released_name(number, filesystem.status(file).inode)))


def is_released(filesystem: FileSystem, directory: int) -> bool:
    """Return whether the writer of the newest segment has given the run up, though somebody else holds the lock.

    A power cut that loses the word of it has ended the process that holds the lock, too.
    """
    names = filesystem.names(directory)
    newest = max(segment_numbers(names), default=0)
    if newest not in map(released_segment, names):
        return False
    with open_if_there(filesystem, filesystem.open_read, directory, segment_name(newest)) as file:
        return file is not None and released_name(newest, filesystem.status(file).inode) in names


def newest_owner(filesystem: FileSystem, directory: int) -> Owner | None:
    """Return who wrote the newest segment, or None if there is none whose header says so.

    Raises:
        OSError: it could not be read.
    """
    numbers = segment_numbers(filesystem.names(directory))
    return owner_of(filesystem, directory, numbers[-1]) if numbers else None


def owner_of(filesystem: FileSystem, directory: int, number: int) -> Owner | None:
    """Return who wrote a segment; None if it is not there, or its header does not say so."""
    try:
        header, _, _ = read_header(read_lines(filesystem, directory, segment_name(number), 1))
        owner = header["owner"]
        return Owner(**{**owner, "acquired_at": datetime.fromisoformat(owner["acquired_at"])})
    except OSError as error:
        if error.errno not in NOT_OURS:
            raise
    except (SegmentDamagedError, KeyError, TypeError, ValueError):
        pass
    return None


# A lock on a file that others only look at: who finds it held asks again, for a moment.


_LOOKS = 20
_LOOK_SECONDS = 0.0005


def take_lock(filesystem: FileSystem, lock: int) -> bool:
    """Take a lock, if it is free.

    A process that looks whether it is held holds it for some microseconds; so one that is held is asked for again, for 10 ms.

    Args:
        filesystem: the calls.
        lock: the file, open.
    """
    for _ in range(_LOOKS):
        if filesystem.lock(lock):
            return True
        time.sleep(_LOOK_SECONDS)
    return False
