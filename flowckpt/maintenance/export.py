"""A run to a file, and its checkpoints to documents for people and for git."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import attrs

from flowckpt.core.codec import Json, encode
from flowckpt.core.codec.blob import Blob, plain_tree
from flowckpt.core.codec.checkpoints import CARRIED, encode_head, export_text
from flowckpt.core.codec.results import as_view
from flowckpt.core.records import CheckpointData, History, HistoryView, PartialState
from flowckpt.core.records.checkpoint import BIRTH
from flowckpt.core.records.listing import IMPORTED, Owner
from flowckpt.core.system.blocking import run_blocking
from flowckpt.core.system.streams import write_whole
from flowckpt.errors import (
    CheckpointCorruptedError,
    CheckpointNotFoundError,
    ForeignRecordError,
)
from flowckpt.maintenance.attempts import warn_of_damage
from flowckpt.maintenance.portable import (
    Counts,
    attempt_line,
    blob_line,
    checkpoint_line,
    end_line,
    header_line,
    result_line,
)
from flowckpt.stores.adapted import CheckpointStore, adapt
from flowckpt.stores.base import Ability, StoreBase
from flowckpt.stores.log.sealing.keys import Key
from flowckpt.stores.queries import DAMAGE

# How many checkpoints of a run no longer count: a later attempt continued from before them.


class LeftBehindCounter:
    """Counts, over all checkpoints of a run in their order, those that a later attempt left behind."""

    def __init__(self) -> None:
        self._lengths: list[int] = []
        self._seen = 0
        self._attempt = 0
        self._before: HistoryView | None = None

    @property
    def count(self) -> int:
        """How many there are so far."""
        return self._seen - len(self._lengths)

    def add(self, data: CheckpointData) -> None:
        """Take in the next checkpoint."""
        view = as_view(data.step_results)
        if data.attempt != self._attempt and self._before is not None:
            shared = self._before.shared_length(view)
            self._lengths = [length for length in self._lengths if length <= shared]
        self._lengths.append(len(view))
        self._seen += 1
        self._attempt, self._before = data.attempt, view


# All checkpoints of a run, read out of a store: those that no longer count, too.


@attrs.frozen
class WholeRun:
    """A run as a store has it.

    Attributes:
        workflow_id: the run.
        checkpoints: all its checkpoints, attempt by attempt and the oldest first.
        owner: the process that runs it, so that it may have continued since; None if it rests.
    """

    workflow_id: str
    checkpoints: Sequence[CheckpointData]
    owner: Owner | None = None

    @property
    def latest(self) -> CheckpointData:
        """Its newest checkpoint."""
        return self.checkpoints[-1]

    @property
    def facts(self) -> dict[str, Any]:
        """The facts about the run that an export and a copy report."""
        standing = LeftBehindCounter()
        for data in self.checkpoints:
            standing.add(data)
        return {
            "attempts": len({data.attempt for data in self.checkpoints}),
            "checkpoints": len(self.checkpoints),
            "steps": len(self.latest.step_results),
            "owner": self.owner,
            "left_behind": standing.count,
        }

    def copy_checkpoints(self) -> Iterator[CheckpointData]:
        """Return the checkpoints for a store that is to save them; see `CheckpointCopier`."""
        copier = CheckpointCopier()
        return map(copier.of, self.checkpoints)


class CheckpointCopier:
    """Makes copies of checkpoints for another store, attempt by attempt and oldest first.

    A store takes over the large values of each checkpoint that it saves, so each copy has its own. Inputs and
    metadata that stay the same during an attempt are one shared object in all its copies, so that the store writes them once.
    """

    def __init__(self) -> None:
        self._history = History()
        self._before: CheckpointData | None = None

    def of(self, data: CheckpointData) -> CheckpointData:
        """Return the copy of the next checkpoint."""
        view = as_view(data.step_results)
        before = self._before
        if before is None or before.attempt != data.attempt:
            self._history, before = History(), None
        history = self._history
        for index in range(len(history.results), len(view)):
            result, blobs = view.history.results[index], view.history.blobs.get(index, {})
            mine = {digest: _copy_blob(blob) for digest, blob in blobs.items()}
            if mine:
                result = attrs.evolve(result, output=next(iter(mine.values())))
            history.append(result, view.history.encoded[index], mine)
        changed: dict[str, Any] = {
            name: _copy_blob(held)
            for name, held in (
                ("inputs", data.held_inputs),
                ("snapshot", data.held_snapshot),
                ("output", data.held_output),
            )
            if isinstance(held, Blob)
        }
        if any(isinstance(each.held_state, Blob) for each in data.partial.values()):
            changed["partial"] = {path: _copy_partial(each) for path, each in data.partial.items()}
        if before is not None and _has_same_inputs(data, before):
            changed["inputs"] = before.held_inputs
        if before is not None and data.metadata == before.metadata:
            changed["metadata"] = before.metadata
        self._before = attrs.evolve(data, step_results=history.view(len(view)), **changed)
        return self._before


def _copy_blob(blob: Blob) -> Blob:
    def fetch(digest: str, size: int) -> bytes:
        return blob.content()

    return Blob(blob.digest, blob.size, fetch=fetch)


def _copy_partial(partial: PartialState) -> PartialState:
    held = partial.held_state
    return attrs.evolve(partial, state=_copy_blob(held)) if isinstance(held, Blob) else partial


def _has_same_inputs(data: CheckpointData, before: CheckpointData) -> bool:
    mine, others = data.held_inputs, before.held_inputs
    if mine is others:
        return True
    if isinstance(mine, Blob) or isinstance(others, Blob):
        return isinstance(mine, Blob) and isinstance(others, Blob) and mine.digest == others.digest
    return bool(plain_tree(mine, "inputs") == plain_tree(others, "inputs"))


async def _read_counting(store: StoreBase, workflow_id: str, attempt: int) -> Sequence[CheckpointData]:
    """Return the checkpoints of a damaged attempt that are part of the current history, oldest first."""
    checkpoints = []
    for reference in reversed(await store.list_checkpoints(workflow_id)):
        if reference.attempt == attempt:
            data = await store.load(workflow_id, reference.checkpoint_id)
            if data.sequence == reference.sequence:
                checkpoints.append(data)
    return checkpoints


async def read_whole_run(store: StoreBase, workflow_id: str) -> WholeRun:
    """Read all checkpoints of a run. If it is live, the result is the run as of one of its checkpoints.

    Raises:
        CheckpointNotFoundError: there is no such run.
        CheckpointCorruptedError: a record is damaged.
        StoreAbilityError: the store cannot read what no longer counts.
    """
    if not store.has(Ability.ATTEMPTS):
        store.lacks(Ability.ATTEMPTS, "return a whole run")
    latest = await store.load_latest(workflow_id)
    if latest is None:
        raise CheckpointNotFoundError(workflow_id)
    parts: list[Sequence[CheckpointData]] = []
    # Behind the newest checkpoint stands, in its own attempt, what a later one left behind whose checkpoints were deleted.
    bound = latest.sequence + 1
    for attempt in reversed([each for each in await store.attempts(workflow_id) if each <= latest.attempt]):
        # What a fenced writer appended when its successor had read the run was never acknowledged, and its sequences
        # were given again.
        try:
            checkpoints_read = await store.read_attempt(workflow_id, attempt)
        except DAMAGE as error:
            if attempt == latest.attempt:
                raise
            warn_of_damage(workflow_id, attempt, error)
            checkpoints_read = await _read_counting(store, workflow_id, attempt)
        part = [data for data in checkpoints_read if data.attempt == attempt and data.sequence < bound]
        if part:
            parts.append(part)
            bound = part[0].sequence
    checkpoints = [data for part in reversed(parts) for data in part]
    if not checkpoints:
        raise CheckpointNotFoundError(workflow_id, detail="it was cleared meanwhile")
    owner = await store.owner(workflow_id)
    return WholeRun(workflow_id, checkpoints, owner)


# A run as the lines of a file: pure, checkpoints in and bytes out.


class LineWriter:
    """Turns the checkpoints of a run into lines.

    Args:
        workflow_id: the run.

    Attributes:
        counts: how much there is so far.
        identity: SHA-256 over the lines so far, but those of large values, which others name by their digest.
    """

    def __init__(self, workflow_id: str) -> None:
        self.counts = Counts()
        self.identity: Any = sha256()
        self._workflow_id = workflow_id
        self._attempt = 0
        self._held: HistoryView | None = None
        self._carried: dict[str, Json] = {}
        self._written: set[str] = set()

    def lines(self, checkpoints: Iterable[CheckpointData], *, is_whole: bool = True) -> Iterator[bytes]:
        """Return the lines of checkpoints, attempt by attempt and the oldest first.

        Args:
            checkpoints: the checkpoints.
            is_whole: with the large values; without them, nothing of those is read.

        Raises:
            ForeignRecordError: the history of a checkpoint does not continue the one before it.
            CheckpointCorruptedError: a large value is not what its record says.
        """
        for data in checkpoints:
            view = as_view(data.step_results)
            start = 0
            if data.attempt != self._attempt:
                start = 0 if self._held is None else self._held.shared_length(view)
                self._attempt, self._carried = data.attempt, {}
                self.counts.attempts += 1
                yield self._said(attempt_line(data.attempt, start))
            else:
                assert self._held is not None, "an attempt has begun"
                start = len(self._held)
                if not view.continues(self._held):
                    raise ForeignRecordError(
                        f"checkpoint {data.sequence} of run {self._workflow_id!r} does not continue the one before it",
                        workflow_id=self._workflow_id,
                        found=f"{start} results before it, {len(view)} in it",
                    )
            head, named = encode_head(_strip_import_marks(data))
            blobs = dict(named)
            for index in range(start, len(view)):
                blobs.update(view.history.blobs.get(index, {}))
            for blob in blobs.values():
                if blob.digest not in self._written:
                    self._written.add(blob.digest)
                    self.counts.blobs += 1
                    if is_whole:
                        yield self._blob_line(blob)
            for encoded in view.history.encoded_between(start, len(view)):
                self.counts.results += 1
                yield self._said(result_line(encoded))
            for name in CARRIED:
                if name in self._carried and head[name] == self._carried[name]:
                    del head[name]
                else:
                    self._carried[name] = head[name]
            self.counts.checkpoints += 1
            self._held = view
            yield self._said(checkpoint_line(head, len(view), view.chain.hex()))

    def _said(self, line: bytes) -> bytes:
        self.identity.update(line)
        return line

    def _blob_line(self, blob: Blob) -> bytes:
        content = blob.content()
        if len(content) != blob.size or sha256(content).hexdigest() != blob.digest or b"\n" in content:
            raise CheckpointCorruptedError(
                self._workflow_id, location=f"large value {blob.digest}", detail="it does not match its digest"
            )
        return blob_line(blob.digest, content)


_ADDED = frozenset({IMPORTED, BIRTH})


def _strip_import_marks(data: CheckpointData) -> CheckpointData:
    """Return a checkpoint without what an import adds, so that a run makes the same bytes wherever it lies."""
    if _ADDED.isdisjoint(data.metadata):
        return data
    return attrs.evolve(data, metadata={name: value for name, value in data.metadata.items() if name not in _ADDED})


def _signing_key(store: StoreBase, run: WholeRun) -> Key | None:
    """Return the key that signs a run; None if what it holds was never proved, because an import brought it in unsigned."""
    if store.keys is None or any(data.metadata.get(IMPORTED) is True for data in run.checkpoints):
        return None
    return store.keys.newest


def run_lines(workflow_id: str, checkpoints: Sequence[CheckpointData], key: Key | None = None) -> Iterator[bytes]:
    """Return all lines of an exported run.

    Args:
        workflow_id: the run.
        checkpoints: all its checkpoints, attempt by attempt and the oldest first; at least one.
        key: the key to sign it with.

    Raises:
        ForeignRecordError: the history of a checkpoint does not continue the one before it.
        CheckpointCorruptedError: a large value is not what its record says.
    """
    latest = checkpoints[-1]
    writer, whole = LineWriter(workflow_id), sha256()
    target = {key: text for key, text in dict(latest.metadata.get("target", {})).items() if isinstance(text, str)}
    first = header_line(workflow_id, latest.workflow_name, latest.status.value, encode(target))
    whole.update(first)
    yield first
    for line in writer.lines(checkpoints):
        whole.update(line)
        yield line
    yield end_line(writer.counts, whole.hexdigest(), key)


def identity_of(workflow_id: str, checkpoints: Iterable[CheckpointData]) -> str:
    """Return a digest that two runs share where they have the same history, whatever their ids and stores.

    Args:
        workflow_id: the run, for errors.
        checkpoints: all its checkpoints, attempt by attempt and the oldest first.
    """
    writer = LineWriter(workflow_id)
    for _ in writer.lines(checkpoints, is_whole=False):
        pass
    return str(writer.identity.hexdigest())


_NOT_PLAIN = re.compile(r"[^a-z0-9_-]+")


@attrs.frozen
class ExportedRun:
    """The outcome of an export.

    Attributes:
        file: the file, or the directory of the documents.
        attempts: the number of attempts that saved something.
        checkpoints: the number of checkpoints.
        left_behind: how many of these no longer count.
        steps: the number of results in the newest checkpoint.
        checkpoint_id: the newest checkpoint; the run was exported as of it.
        owner: the process that ran the run during the export, or None.
        signed_by: the id of the key that signed the file; empty without one.
    """

    workflow_id: str
    file: str
    attempts: int
    checkpoints: int
    steps: int
    checkpoint_id: str
    owner: Owner | None = None
    left_behind: int = 0
    signed_by: str = ""


async def export_run(store: CheckpointStore, workflow_id: str, file: Path | str) -> ExportedRun:
    """Write a whole run to one file: all attempts, checkpoints, results, large values and its target.

    The source is only read. The file appears complete and durable, or not at all. If the store has a key, the file is
    signed with it, unless an unsigned import brought the run in.

    Args:
        store: the store of the run.
        workflow_id: the run.
        file: the file; compressed if the name ends in `.gz`.

    Raises:
        CheckpointNotFoundError: the run does not exist.
        CheckpointCorruptedError: a record is damaged.
        StoreAbilityError: the store cannot read checkpoints that no longer count.
        OSError: the file cannot be written.
    """
    store = adapt(store)
    run = await read_whole_run(store, workflow_id)
    place, key = Path(file), _signing_key(store, run)
    await write_whole(place, run_lines(workflow_id, run.checkpoints, key), is_compressed=place.suffix == ".gz")
    return describe_export(run, str(file), key)


async def stream_run(store: CheckpointStore, workflow_id: str, write: Callable[[bytes], Any]) -> ExportedRun:
    """Hand the lines of an exported run to a function; the process that reads them sees by the last whether all came.

    Args:
        store: the store that has the run.
        workflow_id: the run.
        write: takes a line.

    Raises:
        CheckpointNotFoundError: there is no such run.
        CheckpointCorruptedError: a record is damaged.
        StoreAbilityError: the store cannot read what no longer counts.
    """
    store = adapt(store)
    run = await read_whole_run(store, workflow_id)
    key = _signing_key(store, run)

    def write_all() -> None:
        for line in run_lines(workflow_id, run.checkpoints, key):
            write(line)

    await run_blocking(write_all)
    return describe_export(run, "-", key)


async def export_documents(
    store: StoreBase, workflow_id: str, directory: Path | str, *, is_forced: bool = True
) -> ExportedRun:
    """Write each checkpoint as its own JSON document, in a directory suitable for git.

    File names start with the sequence and never change; a later export adds files.

    Args:
        store: the store of the run.
        workflow_id: the run.
        directory: the directory; created if missing.
        is_forced: whether to replace existing documents that differ.

    Raises:
        CheckpointNotFoundError: the run does not exist.
        CheckpointCorruptedError: a record is damaged.
        StoreAbilityError: the store cannot read checkpoints that no longer count.
        FileExistsError: a different document exists; nothing was written.
        OSError: a file cannot be written.
    """
    store = adapt(store)
    run = await read_whole_run(store, workflow_id)
    place = Path(directory)

    def prepare() -> None:
        if not is_forced:
            for data in run.checkpoints:
                refuse_other(place / document_name(data), export_text(data).encode())
        place.mkdir(parents=True, exist_ok=True)

    await run_blocking(prepare)
    for data in run.checkpoints:
        await write_whole(place / document_name(data), [export_text(data).encode()])
    return describe_export(run, str(directory))


def refuse_other(file: Path, content: bytes) -> None:
    """Refuse to replace a file that says something else.

    Raises:
        FileExistsError: it is there, with another content.
    """
    if file.is_symlink() or (file.is_file() and file.read_bytes() != content):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(file))


def document_name(data: CheckpointData) -> str:
    """Return the name of a checkpoint's document: its sequence, and of its id what is harmless in a name."""
    plain = _NOT_PLAIN.sub("-", data.checkpoint_id.lower()).strip("-")[:40]
    return f"{data.sequence:06d}{f'-{plain}' if plain else ''}.json"


def describe_export(run: WholeRun, file: str, key: Key | None = None) -> ExportedRun:
    """Return what is to be said of an export."""
    signed_by, newest = "" if key is None else key.id, run.latest.checkpoint_id
    return ExportedRun(run.workflow_id, file, checkpoint_id=newest, signed_by=signed_by, **run.facts)
