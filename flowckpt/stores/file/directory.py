r"""The directory of a run: its lock, its segments, the writer of the newest one, and its hints.

The note of steps started since the last checkpoint shows what a killed process was doing. It is in the run's lock file,
which the owner holds open anyway, and is written without a sync (1 µs). The kernel keeps it if the process dies, even
by `kill -9`. After a power cut it may be missing or old, so it is only a hint for people: a step that must not be done
twice is marked by a durable checkpoint before it starts.

The text has one line for the number of the attempt and one for each path, and ends at a zero byte, after which
everything is ignored::

    3\nfetch\npages[17]\n\0

If the lines of the segment are encrypted, so is each path. A checkpoint does not clear the note; the next step starts a
new one. During a long step, the owner rewrites the first line every ten seconds, so the file's modification time is its
last heartbeat.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import time
from binascii import a2b_base64, b2a_base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import attrs

from flowckpt.core.codec.blob import Fetch
from flowckpt.core.records.listing import Owner
from flowckpt.core.system.attrs_base import lazy_frozen
from flowckpt.core.system.declared import shell_word
from flowckpt.core.system.filesystem import Directory, FileSystem, held_open, open_if_there, write_all
from flowckpt.core.system.ids import new_token
from flowckpt.core.system.process import current_process
from flowckpt.errors import CheckpointCorruptedError, ForeignRecordError, WrongKeyError
from flowckpt.stores.file.layout import (
    HEAD,
    NOT_OURS,
    head_name,
    is_abandoned,
    mark_name,
    parse_head_number,
    parse_release,
    released_name,
    segment_name,
    segment_numbers,
    temporary_name,
)
from flowckpt.stores.log.image import RunImage, read_run
from flowckpt.stores.log.sealing.protection import PLAIN, SealBrokenError, Seals
from flowckpt.stores.log.segment import NOTE, START, SegmentDamagedError, parse_header, parse_owner

if TYPE_CHECKING:
    from flowckpt.stores.log.sealing.lines import LineSeal


MOST = 1 << 16
"""Maximum bytes of the text, twice as many if paths are encrypted; further steps are not noted."""


class StartedSteps:
    """Notes the steps that an attempt starts.

    Args:
        lock: the run's lock file, open for writing.
        seal: the seal of its segment, if there is one.

    Attributes:
        end: the offset of the next note; set it to 0 after a checkpoint.
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
        """Note a step; a full disk is ignored.

        Args:
            path: the step.
        """
        start = self.end
        text = path.encode("utf-8", "replace")
        if self._seal is not None:
            self._count += 1  # never reset in an attempt, because it is a nonce; a forked child has the same count
            text = self._seal.encrypt_hint(text, self._count << 24 | int.from_bytes(os.urandom(3)))
        line = (text if start else self._head + text) + b"\n\0"
        end = start + len(line)
        if end <= self._most:
            try:  # contextlib.suppress would take half as long as the write
                self._filesystem.write_at(self._lock, line, start)
            except OSError:
                return
            self.end = end - 1

    def sign(self) -> None:
        """Rewrite the beginning of the note as a heartbeat: the file's modification time shows when."""
        if self.end:  # otherwise the last save is newer, and the note may belong to an earlier attempt
            with contextlib.suppress(OSError):
                self._filesystem.write_at(self._lock, self._head, 0)


@contextlib.contextmanager
def temporary_file(directory: Directory) -> Iterator[tuple[int, str]]:
    """Make a file under a random name, open for the block, which renames it; after an error it is removed."""
    name = temporary_name(current_process(), new_token(8))
    file = directory.create(name)
    try:
        with held_open(directory.calls, file):
            yield file, name
    except BaseException:
        directory.discard(name, OSError)
        raise


def replace_unsynced(directory: Directory, name: str, content: bytes) -> None:
    """Replace a file of hints atomically, without a sync.

    Raises:
        OSError: it cannot be written; the old file is unchanged.
    """
    with temporary_file(directory) as (file, temporary):
        write_all(directory.calls, file, content)
        directory.rename(temporary, name)


def write_new(directory: Directory, name: str, content: bytes) -> bool:
    """Write and sync a file, and give it its name unless that is taken; return whether it is new.

    The name is durable once the caller has synced the directory.
    """
    temporary = temporary_name(current_process(), new_token(8))
    file = directory.create(temporary)
    try:
        write_all(directory.calls, file, content)
        directory.calls.sync(file)
        directory.link(temporary, name)
    except FileExistsError:
        return False
    finally:
        directory.calls.close(file)
        directory.discard(temporary, OSError)
    return True


def make_folder(directory: Directory, name: str) -> None:
    """Create a directory in an open one, durably. An existing one is synced, too: its maker may have died before that."""
    with contextlib.suppress(FileExistsError):
        directory.make_directory(name)
    directory.sync()


def sweep_abandoned(directory: Directory, remove: Callable[[Directory, str], None] = Directory.unlink) -> None:
    """Remove the temporary files of processes that died.

    Args:
        directory: the directory, open.
        remove: removes one of them.
    """
    here = current_process()
    for name in directory.names():
        if is_abandoned(name, here):
            with contextlib.suppress(FileNotFoundError):
                remove(directory, name)


def clear_folder(directory: Directory, name: str) -> None:
    """Remove a folder of a run with all its files, including those that other processes are adding."""
    while True:
        with open_if_there(directory.open, name) as folder:
            if folder is None:
                return
            for each in folder.names():
                folder.discard(each)
        try:
            directory.calls.remove_directory(directory.descriptor, name)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                raise


_MOST_DIGITS = 15
"""Maximum digits of an attempt's number, as in the name of its segment."""


def parse_started_steps(
    content: bytes, seal_of: Callable[[int], LineSeal | None] | None = None
) -> tuple[int, tuple[str, ...]]:
    """Return the attempt that wrote the note, and its steps; attempt 0 if the note is missing or unreadable.

    Args:
        content: the content of a lock file.
        seal_of: returns the seal of an attempt's segment; None if it has none or it is unavailable.
    """
    text, end, _ = content.partition(b"\0")
    head, *paths = text.split(b"\n")
    if not end or not head.isascii() or not head.isdigit() or len(head) > _MOST_DIGITS or not paths or paths.pop():
        return 0, ()
    attempt = int(head)
    try:
        seal = None if seal_of is None else seal_of(attempt)
        shown = [path if seal is None else seal.decrypt_hint(path) for path in paths]
    except SealBrokenError:
        return 0, ()
    return attempt, tuple(dict.fromkeys(path.decode("utf-8", "replace") for path in shown))


# The live note: the running steps, in the file `live` of the run. If the segment is sealed, the note is sealed like a
# head.


def seal_live_note(content: bytes, attempt: int, seal: LineSeal, count: int) -> bytes:
    """Return a live note in its sealed form.

    Args:
        content: the note.
        attempt: the attempt that writes it.
        seal: the seal of its segment.
        count: the number of notes that the attempt has written.
    """
    number = 1 << 55 | count << 24 | int.from_bytes(os.urandom(3))  # above the numbers of the started steps
    hint = b2a_base64(seal.encrypt_hint(content, number), newline=False)
    return seal.authenticate(b'{"flowckpt":"live","attempt":%d,"hint":"%b"' % (attempt, hint), NOTE, START) + b"}"


def open_live_note(content: bytes, seal_of: Callable[[int], LineSeal | None]) -> bytes | None:
    """Return the content of a sealed live note; None if it cannot be opened.

    Args:
        content: the content of the file.
        seal_of: returns the seal of an attempt's segment; None if it has none.
    """
    try:
        fields = json.loads(content)
        attempt = fields["attempt"] if fields["flowckpt"] == "live" else None
        seal = seal_of(attempt) if type(attempt) is int and 0 < attempt < 10**_MOST_DIGITS else None
        if seal is None:
            return None
        seal.verify(content[:-1], NOTE, START)
        return seal.decrypt_hint(a2b_base64(fields["hint"], strict_mode=True))
    except (SealBrokenError, ValueError, LookupError, TypeError, RecursionError):
        return None


# Head files: they note the last acknowledged line of an attempt outside its segment, so that a truncation is detected.
#
# The chain of a segment proves each line by the previous one. It does not prove that no line followed the last one; and
# nothing in a directory proves that no segment was removed. So the owner notes, with a key, what it continues (a
# segment, and the digest of the last line acknowledged there: a power cut may still lose a later one), and then the
# digest of the last line that it acknowledged itself. A reader with the key requires that line.
#
# Each attempt has its own file, `head-` with the number of the segment and a part of its nonce: one line of JSON,
# padded to a sector, which the disk writes atomically. It exists and is synced before the first line of the attempt is
# written. So if the newest attempt has none, somebody removed it, and the file of an earlier attempt cannot replace it.
# It is then rewritten after each acknowledged line without a sync (5 µs): a power cut may leave an older state, which
# is still true but proves less. It is never ahead of the segment, because the line was synced first. It is synced when
# the owner releases the run. The files of earlier attempts are removed after the first acknowledged line; a fenced
# owner that wakes up late writes only to its own.

_SIZE = 512


class TruncationGuard:
    """Notes the last acknowledged line of an attempt.

    Args:
        number: the segment.
        seal: the segment's seal.
        adopts: the segment that the attempt continues, and the digest of its last acknowledged line; may be empty.
    """

    def __init__(self, directory: Directory, number: int, seal: LineSeal, adopts: tuple[int, str]) -> None:
        self._filesystem = directory.calls
        self._directory = directory
        self._number = number
        adopted = dict(zip(("segment", "digest"), adopts, strict=True))
        fields = {"flowckpt": "head", "segment": number, **seal.header_fields, "adopts": adopted}
        self._head = json.dumps(fields, separators=(",", ":"))[:-1].encode()
        self._seal = seal
        self.name = head_name(number, seal.nonce)
        self._file: int | None = None
        self._is_alone = False

    def begin(self) -> None:
        """Write the head durably to a new file; the sync of an existing file may have failed.

        Raises:
            OSError: it cannot be made durable; do not try again.
        """
        directory = self._directory
        with temporary_file(directory) as (file, name):
            write_all(directory.calls, file, self._encode_head(""))
            directory.calls.sync(file)
            directory.rename(name, self.name)
            directory.sync()
        self._file = directory.open_lock(self.name)  # the new file is open for appending only

    def note(self, digest: bytes) -> None:
        """Note the last acknowledged line. The line is durable, so a failed write is ignored.

        Args:
            digest: the digest of the line.
        """
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._filesystem.write_at(self._file, self._encode_head(digest.hex()), 0)
                if not self._is_alone:
                    self._is_alone = True
                    self._remove_earlier()

    def _remove_earlier(self) -> None:
        for name in self._directory.names():
            number = parse_head_number(name)
            if number is not None and number <= self._number and name != self.name:
                self._directory.discard(name)

    def close(self, *, is_end: bool) -> None:
        """Close the file.

        Args:
            is_end: whether the owner releases the run, so that the head is synced.
        """
        file, self._file = self._file, None
        if file is not None:
            if is_end:
                with contextlib.suppress(OSError):
                    self._filesystem.sync_data(file)
            self._filesystem.close(file)

    def _encode_head(self, digest: str) -> bytes:
        body = self._seal.authenticate(b'%b,"digest":"%b"' % (self._head, digest.encode()), NOTE, START)
        return (body + b"}").ljust(_SIZE - 1) + b"\n"


@lazy_frozen()
class _Head:
    """The content of a head: the last line of the attempt, and the line that it continues."""

    digest: str
    adopted_segment: int
    adopted: str


def find_missing_end(image: RunImage, heads: Mapping[str, bytes], seals: Seals, later: Sequence[int] = ()) -> str:
    """Return what is missing at the end of a run, according to its head files; empty if it is complete.

    Args:
        image: the whole run, read after the head files.
        heads: the contents of the head files, by name.
        seals: the seals of the store.
        later: existing segments that were not read, because they fence a process that claims a number below them.

    Raises:
        WrongKeyError: a head was sealed with a missing key.
        ForeignRecordError: a head belongs to another store.
    """
    if later:
        return ""
    wanted = _expected_head(image)
    for name, head in sorted(heads.items()):
        number = parse_head_number(name) or 0
        if not head or (name != wanted and number <= image.begun):
            continue  # a later attempt continued from there
        try:
            head_note = _open_head(head, name, number, image.workflow_id, seals)
        except SealBrokenError as broken:
            if image.seal is None:  # no line was written yet: a power cut may have torn the first head
                continue
            return f"the head file of the run cannot be opened: {broken}"
        if number > image.begun and head_note.digest:
            return f"{segment_name(number)} is missing, although records in it were acknowledged"
        if number > image.begun and not _has_line(image, head_note.adopted_segment, head_note.adopted):
            return f"records at the end of {segment_name(head_note.adopted_segment)} are missing, but were continued"
        if number == image.begun and not _has_line(image, number, head_note.digest):
            return f"records at the end of {segment_name(number)} are missing, although they were acknowledged"
    return "the head file of the run is missing" if wanted and not heads.get(wanted) else ""


def make_guard(
    directory: Directory, number: int, seal: LineSeal | None, image: RunImage, seals: Seals
) -> TruncationGuard | None:
    """Return the guard of a new segment; None if the segment is not sealed.

    Args:
        directory: the run's directory, open.
        number: the segment.
        seal: the seal of the segment.
        image: the run that it continues.
        seals: the keys of the store.
    """
    if seal is None or seal.key is None:
        return None
    adopts = _find_acknowledged(image, read_heads(directory), seals)
    return TruncationGuard(directory, number, seal, adopts)


def _find_acknowledged(image: RunImage, heads: Mapping[str, bytes], seals: Seals) -> tuple[int, str]:
    """Return the newest segment with a record, and the digest of the last line that its head file notes."""
    name = _expected_head(image)
    try:
        head_note = _open_head(heads[name], name, image.begun, image.workflow_id, seals)
    except (KeyError, SealBrokenError, WrongKeyError, ForeignRecordError):  # not sealed, or taken on trust
        return image.begun, ""
    return image.begun, head_note.digest


def _expected_head(image: RunImage) -> str:
    return "" if image.seal is None else head_name(image.begun, image.seal.nonce)


def _has_line(image: RunImage, number: int, digest: str) -> bool:
    if not digest or (number == image.begun and image.end.hex() == digest):
        return True
    return any(record.file == number and record.digest.hex() == digest for record in reversed(image.records))


def _open_head(head: bytes, name: str, number: int, workflow_id: str, seals: Seals) -> _Head:
    body = head.rstrip()
    try:
        fields = json.loads(body)
        head_note = _Head(fields["digest"], fields["adopts"]["segment"], fields["adopts"]["digest"])
    except (ValueError, LookupError, TypeError) as error:
        raise SealBrokenError("it is damaged") from error
    if list(map(type, attrs.astuple(head_note))) != [str, int, str] or fields.get("segment") != number:
        raise SealBrokenError("it is damaged")
    seal = seals.find_seal(workflow_id, number, fields, name)
    if seal is None or head_name(number, seal.nonce) != name:
        raise SealBrokenError("it is not authenticated")
    seal.verify(body[:-1], NOTE, START)
    return head_note


_STEP = 16 * 1024
"""Bytes; most headers have a few hundred."""


MOST_HINT = 32 * 1024 * 1024
"""Maximum bytes of a hint: more than flowckpt writes."""


def read_file(directory: Directory, name: str, most: int | None = None) -> bytes:
    """Return the bytes of a file in a directory.

    Args:
        directory: the directory, open.
        name: the file.
        most: the maximum size of a hint; a larger one is damaged, and counts as empty.
    """
    with directory.reading(name) as file:
        size = directory.calls.status(file).size
        return b"" if most is not None and size > most else directory.calls.read(file, size, 0)


def read_segment(directory: Directory, number: int) -> bytes:
    """Return the bytes of a segment in a run's directory."""
    return read_file(directory, segment_name(number))


def read_lines(directory: Directory, name: str, count: int) -> bytes:
    """Return the beginning of a file with at least `count` lines, if it has them, without reading all of a long file.

    Args:
        directory: the file's directory, open.
        name: the file.
        count: the number of lines.
    """
    with directory.reading(name) as file:
        size = _STEP
        while True:
            data = directory.calls.read(file, size, 0)
            if data.count(b"\n") >= count or len(data) < size:
                return data
            size *= 8


def read_image(
    directory: Directory,
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
        directory: the run's directory, open.
        workflow_id: the run.
        fetch: reads large values.
        below: read only segments below this number; None for all.
        seals: the seals of the store.
        attempt: read the run as this attempt left it, without a check of its end; None for the current state.
        known: the run as read before; reused if its bytes are the same.

    Raises:
        CheckpointCorruptedError: a record is damaged or was removed.
        FileNotFoundError: the run was cleared or compacted meanwhile; try again.
    """
    is_compared = attempt is None and seals.has_key and not seals.protection.is_trusting
    read = partial(read_segment, directory)

    def list_segments() -> list[int]:
        return segment_numbers(directory.names())

    while True:
        # Read the head files first: they are never ahead of the segments.
        heads = read_heads(directory) if is_compared else {}
        found = [] if below == 1 and not is_compared else list_segments()  # the first claim of a run
        numbers = [number for number in found if below is None or number < below]
        try:
            image = read_run(workflow_id, numbers, read, fetch, seals, attempt=attempt, known=known)
        except CheckpointCorruptedError:
            if list_segments() != found:  # during a compaction, a list may lack both the new segment and an old one
                raise FileNotFoundError(errno.ENOENT, "a segment was removed") from None
            raise
        if not is_compared or image.is_cleared:
            return image
        later = [number for number in found if below is not None and number > below]
        missing = find_missing_end(image, heads, seals, later)
        if not missing:
            return image
        # Otherwise the run was started, or cleared and started again, or compacted, meanwhile.
        if read_heads(directory) == heads and list_segments() == found:
            raise _truncation_error(workflow_id, missing, max(heads, default=HEAD))


def _truncation_error(workflow_id: str, missing: str, location: str) -> CheckpointCorruptedError:
    way = f"'flowckpt store trust {shell_word(workflow_id)}'"
    remedy = f"Restore the run from a backup, including its 'head-' files. If you know that it is complete: {way}."
    return CheckpointCorruptedError(workflow_id, location=location, detail=missing, remedy=remedy)


def read_heads(directory: Directory) -> dict[str, bytes]:
    """Return the contents of the head files in a run's directory, by name."""
    found = {}
    for name in directory.names():
        if parse_head_number(name) is not None:
            with contextlib.suppress(FileNotFoundError):
                found[name] = read_file(directory, name)
    return found


def give_up_segment(directory: Directory, file: int, number: int) -> None:
    """Remove a claimed segment without records, and the mark that another claimer may have set on it.

    The run may have been cleared and started again while the claimer was suspended; then the segment of this number
    belongs to another owner, and stays.

    Args:
        directory: the run's directory.
        file: the segment's file, open.
        number: the segment.
    """
    with contextlib.suppress(OSError):
        if directory.is_named(file, segment_name(number)):
            directory.unlink(segment_name(number))
        if (status := directory.calls.status(file)).links:
            directory.unlink(mark_name(number, status.inode))


def is_released(directory: Directory) -> bool:
    """Return whether the writer of the newest segment released the run, although another process holds the lock.

    A power cut that loses this note has also ended the process that holds the lock.
    """
    names = directory.names()
    newest = max(segment_numbers(names), default=0)
    if newest not in map(parse_release, names):
        return False
    with open_if_there(directory.reading, segment_name(newest)) as file:
        return file is not None and released_name(newest, directory.calls.status(file).inode) in names


def read_newest_owner(directory: Directory) -> Owner | None:
    """Return the writer of the newest segment, or None if there is no segment or its header does not name one.

    Raises:
        OSError: it could not be read.
    """
    numbers = segment_numbers(directory.names())
    return read_owner(directory, numbers[-1]) if numbers else None


def read_owner(directory: Directory, number: int) -> Owner | None:
    """Return the writer of a segment; None if the segment is missing or its header does not name one."""
    try:
        header, _, _ = parse_header(read_lines(directory, segment_name(number), 1))
        return parse_owner(header)
    except OSError as error:
        if error.errno not in NOT_OURS:
            raise
    except (SegmentDamagedError, KeyError, TypeError, ValueError):
        pass
    return None


# Readers take the lock briefly to test it, so a failed attempt is repeated for a moment.


_LOCK_TRIES = 20
_LOCK_PAUSE_SECONDS = 0.0005


def take_lock(filesystem: FileSystem, lock: int) -> bool:
    """Take a lock if it is free; return whether that succeeded.

    A process that tests the lock holds it for some microseconds, so a held lock is tried again for 10 ms.

    Args:
        filesystem: the calls.
        lock: the file, open.
    """
    for _ in range(_LOCK_TRIES):
        if filesystem.lock(lock):
            return True
        time.sleep(_LOCK_PAUSE_SECONDS)
    return False
