"""Import of a run from an untrusted file into a store."""

from __future__ import annotations

import contextlib
import functools
import hmac
import os
import stat
import sys
import tempfile
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import IO, Any, TypeAlias

import attrs

from flowckpt.core.codec import Json
from flowckpt.core.codec.blob import BLOB_SIZE, Fetch
from flowckpt.core.codec.checkpoints import CARRIED, check_schema, decode_head
from flowckpt.core.codec.results import append_result, decode_result
from flowckpt.core.codec.wellformed import MalformedError, check_head, check_name, check_result, is_count
from flowckpt.core.identity.secrets import KnownSecrets, iter_searched
from flowckpt.core.records import CheckpointData, History, Reason
from flowckpt.core.records.checkpoint import BIRTH
from flowckpt.core.records.listing import AUTHENTICATED, IMPORTED, is_task
from flowckpt.core.records.result import CHAIN_START
from flowckpt.core.system.blocking import run_blocking, run_on_daemon
from flowckpt.core.system.ids import check_new_id, new_run_id, new_token
from flowckpt.core.system.streams import read_chunks, read_pipe
from flowckpt.errors import DecodingError, EncodingError, ImportRefusedError, InputError, SourceUnreadableError
from flowckpt.maintenance.copy import store_run
from flowckpt.maintenance.export import LeftBehindCounter, WholeRun, identity_of
from flowckpt.maintenance.portable import (
    FORMAT,
    RATIO_FROM,
    Counts,
    ImportLimits,
    check_run_id,
    end_line,
    find_signing_key,
    is_run,
    parse_blob,
    parse_result,
    parse_strict_json,
)
from flowckpt.stores.adapted import CheckpointStore, adapt
from flowckpt.stores.log.sealing.keys import Key, KeyRing

# The document of one checkpoint, as printed by `export` and possibly edited by hand.


_EMPTY = ("snapshot", "output", "error")
_EMPTY_OF_RESULT = ("error", "started_at", "evidence", "version")
"""Fields that a document always has, but a record only if they are not empty."""


_NO_SECRETS = KnownSecrets()


def parse_checkpoint(text: bytes, secrets: KnownSecrets = _NO_SECRETS) -> CheckpointData:
    """Return the checkpoint of a document.

    Args:
        text: the document.
        secrets: the values that it must not contain.

    Raises:
        InputError: it contains a secret.
        MalformedError: it is not valid.
        UnsupportedSchemaError: a newer flowckpt has written it.
    """
    document = parse_strict_json(text)
    if type(document) is not dict or not {"checkpoint_id", "step_results"} <= document.keys():
        raise MalformedError("it is neither a run nor a checkpoint that flowckpt has exported")
    check_schema(document.pop("schema_version", None))
    listed = document.pop("step_results")
    if type(listed) is not list:
        raise MalformedError("its step_results are not a list")
    head: dict[str, Any] = {key: value for key, value in document.items() if key not in _EMPTY or value is not None}
    check_head(head)
    missing = [name for name in CARRIED if name not in head]
    if missing:
        raise MalformedError(f"it has no {missing[0]!r}")
    if type(head["inputs"]) is not dict:
        raise MalformedError("its inputs are not an object")
    _refuse_secrets(head, secrets, f"checkpoint {head['checkpoint_id']!r}")
    history, paths = History(), set()
    try:
        for each in listed:
            check_result(each)
            if each["path"] in paths:
                raise MalformedError(f"the step {each['path']!r:.80} appears twice")
            paths.add(each["path"])
            _refuse_secrets(each, secrets, f"step {each['path']!r}")
            fields = {key: value for key, value in each.items() if key not in _EMPTY_OF_RESULT or value is not None}
            append_result(history, decode_result(fields)[0])
        return decode_head(head, history.view())
    except (DecodingError, EncodingError) as error:
        raise MalformedError(error.message) from None


def _refuse_secrets(document: Mapping[str, Json], secrets: KnownSecrets, place: str) -> None:
    """Refuse a document that contains a secret.

    Raises:
        InputError: it contains one.
    """
    for part, tree in iter_searched(document, place) if secrets.is_any else ():
        if found := secrets.place_in(tree, part):
            raise InputError(
                f"the file contains the value of a secret input, which would be recorded: {secrets.redact(found)}",
                parameter="file",
                remedy="Replace that secret, because the file shows it.",
            )


# The checkpoints in the lines of an untrusted file: each line is verified before it is used.


@attrs.define
class _ReadState:
    """The state of a run after the lines read so far.

    Attributes:
        attempt: the number of the attempt.
        sequence: the sequence of its last checkpoint.
        saved: the number of results in that checkpoint.
        has_saved: whether the attempt has a checkpoint.
        history: the results that count.
        chains: the digest up to each of them.
        carried: the fields that later checkpoints inherit.
        latest: the last checkpoint.
    """

    attempt: int = 0
    sequence: int = 0
    saved: int = 0
    has_saved: bool = False
    history: History = attrs.field(factory=History)
    chains: list[bytes] = attrs.field(factory=lambda: [CHAIN_START])
    carried: dict[str, Json] = attrs.field(factory=dict)
    latest: CheckpointData | None = None


class RunReader:
    """Reads the lines of an exported run in order, and refuses the first invalid one.

    Args:
        limits: the limits of sizes and counts.
        fetch: reads the line of a large value again.
        secrets: the values that the run must not contain.

    Attributes:
        workflow_id: the run named by the first line; not yet validated.
        workflow_name: its workflow, once read.
        line: the number of the current line.
        places: the offset of each large value's content in the file.
        identity: SHA-256 over the lines between the first and the last, except those of large values.
        counts: how much was read so far.
        signed_by: the id of the key named by the last line; empty without a signature.
    """

    def __init__(self, limits: ImportLimits, fetch: Fetch | None = None, secrets: KnownSecrets = _NO_SECRETS) -> None:
        self._secrets = secrets
        self.workflow_id: Any = None
        self.workflow_name = ""
        self.line = 0
        self.places: dict[str, tuple[int, int]] = {}
        self.identity: Any = sha256()
        self.signed_by = ""
        self._end = b""
        self._limits = limits
        self._fetch = fetch
        self._whole = sha256()
        self._offset = 0
        self._unnamed: set[str] = set()
        self.counts = Counts()
        self._state = _ReadState()

    def checkpoints(self, lines: Iterable[bytes]) -> Iterator[CheckpointData]:
        """Yield the checkpoints, attempt by attempt, oldest first. The iterator ends only if the file is complete.

        Args:
            lines: the lines of the file, each with its line feed.

        Raises:
            InputError: a line contains a secret.
            MalformedError: a line is invalid, or something does not match its digest.
            UnsupportedSchemaError: a newer flowckpt has written it.
        """
        is_ended = False
        for line in lines:
            self.line += 1
            if self.line > self._limits.max_records:
                raise MalformedError(f"it has more than {self._limits.max_records} lines")
            if is_ended:
                raise MalformedError("something follows the end")
            if line[-1:] != b"\n":
                raise MalformedError("it ends in the middle of a line: the file was cut")
            if self.line == 1:
                self._read_header(line)
            elif line.startswith(b'{"end":'):
                self._read_end(line)
                is_ended = True
            else:
                data = self._read(line)
                if data is not None:
                    yield data
            if not is_ended:
                self._whole.update(line)
            self._offset += len(line)
        if not is_ended:
            raise MalformedError("it has no end: the file was cut")

    def _read_header(self, line: bytes) -> None:
        document = parse_strict_json(line)
        if type(document) is not dict or document.get("flowckpt") != FORMAT:
            raise MalformedError("it is not a run that flowckpt has exported")
        check_schema(document.get("schema_version"))
        self.workflow_id = document.get("workflow_id")
        self.workflow_name = check_name(document.get("workflow_name"), "the name of a workflow")

    def _read(self, line: bytes) -> CheckpointData | None:
        if (found := parse_blob(line[:-1])) is not None:
            self._read_blob(line, *found)
            return None
        self.identity.update(line)
        if (encoded := parse_result(line[:-1])) is not None:
            self._read_result(encoded)
            return None
        document = parse_strict_json(line)
        keys = list(document) if type(document) is dict else []
        if keys == ["attempt", "keeps"]:
            self._begin_attempt(document["attempt"], document["keeps"])
            return None
        if keys == ["checkpoint", "results", "chain"]:
            return self._read_checkpoint(document)
        raise MalformedError("it is not a line of an exported run")

    def _begin_attempt(self, attempt: Json, keeps: Json) -> None:
        self._check_finished()
        state, most = self._state, self._limits.max_attempts
        if not is_count(attempt, state.attempt + 1) or attempt > most:
            raise MalformedError(f"attempt {attempt!r:.40} cannot follow {state.attempt} (at most {most})")
        if not is_count(keeps) or keeps > state.saved:
            raise MalformedError(f"attempt {attempt} keeps {keeps!r:.40} of {state.saved} results")
        state.attempt, state.saved, state.has_saved, state.carried = attempt, keeps, False, {}
        state.history = state.history.forked(keeps)
        del state.chains[keeps + 1 :]
        self.counts.attempts += 1

    def _check_finished(self) -> None:
        """Refuse an attempt that does not end with a checkpoint."""
        state = self._state
        if state.attempt and (not state.has_saved or len(state.chains) - 1 != state.saved):
            raise MalformedError(f"attempt {state.attempt} ends without a checkpoint")

    def _read_blob(self, line: bytes, digest: str, size: int, start: int) -> None:
        content = memoryview(line)[start:-2]
        if size < BLOB_SIZE or len(content) != size or line[-2:] != b"}\n" or sha256(content).hexdigest() != digest:
            raise MalformedError(f"the large value {digest} does not match its digest")
        if digest in self.places:
            raise MalformedError(f"the large value {digest} appears twice")
        if self._fetch is None:  # on a second read, it is known to be JSON
            _refuse_secrets({digest: parse_strict_json(bytes(content))}, self._secrets, "large value")
        self.places[digest] = (self._offset + start, size)
        self._unnamed.add(digest)
        self.counts.blobs += 1

    def _read_result(self, encoded: bytes) -> None:
        if not self._state.attempt:
            raise MalformedError("a result precedes the first attempt")
        document = parse_strict_json(encoded)
        check_result(document)
        _refuse_secrets(document, self._secrets, f"step {document['path']!r}")
        self._check_reference(document.get("output"))
        try:
            result, blobs = decode_result(document, self._fetch)
        except DecodingError as error:
            raise MalformedError(error.message) from None
        self._state.history.append(result, encoded, blobs)
        self._state.chains.append(sha256(self._state.chains[-1] + encoded).digest())
        self.counts.results += 1

    def _check_reference(self, value: Json) -> None:
        if type(value) is dict and "$blob" in value:
            reference = value["$blob"]
            if type(reference) is not list or not reference or type(reference[0]) is not str:
                raise MalformedError(f"a large value is named by {reference!r:.80}")
            if len(value) != 1 or reference[1:] != [self.places.get(reference[0], (0, -1))[1]]:
                raise MalformedError(
                    f"the large value {reference[0]:.64} is not in an earlier line with the size that is given here"
                )
            self._unnamed.discard(reference[0])

    def _read_checkpoint(self, document: Mapping[str, Json]) -> CheckpointData:
        state = self._state
        head, results = document["checkpoint"], len(state.chains) - 1
        try:
            check_head(head)
            _refuse_secrets(head, self._secrets, f"checkpoint {head['checkpoint_id']!r}")
            if document["results"] != results or document["chain"] != state.chains[-1].hex():
                raise MalformedError("the results before it do not match its digest")
            if head["attempt"] != state.attempt:
                raise MalformedError(f"a checkpoint of attempt {head['attempt']} stands in attempt {state.attempt}")
            if head["sequence"] <= state.sequence:
                raise MalformedError(f"checkpoint {head['sequence']} comes after {state.sequence}")
            missing = [name for name in CARRIED if name not in head and name not in state.carried]
            if missing:
                raise MalformedError(f"the first checkpoint of attempt {state.attempt} has no {missing[0]!r}")
            for name in ("inputs", "snapshot", "output"):
                self._check_reference(head.get(name))
            for partial in head.get("partial", {}).values():
                self._check_reference(partial["state"])
            if type(head.get("inputs", {})) is not dict:
                raise MalformedError("the inputs of a checkpoint are not an object")
            state.carried.update({name: head[name] for name in CARRIED if name in head})
            data = decode_head({**state.carried, **head}, state.history.view(results), self._fetch)
        except DecodingError as error:
            raise MalformedError(error.message) from None
        if data.extra.keys() & {"schema_version", "step_results", "results", "sha256", "deletes", "adopts"}:
            raise MalformedError("a checkpoint has a field that belongs elsewhere")
        before = state.latest if state.has_saved else None
        if before is not None:  # a store writes once what is the very same object
            same = {name: getattr(before, held) for name, held in _SHARED.items() if name not in head}
            data = attrs.evolve(data, **same) if same else data
        state.sequence, state.saved, state.has_saved, state.latest = data.sequence, results, True, data
        self.counts.checkpoints += 1
        return data

    def is_signed_with(self, key: Key) -> bool:
        """Return whether the file, read to its end, was signed with a key."""
        return hmac.compare_digest(self._end, end_line(self.counts, self._whole.hexdigest(), key))

    def _read_end(self, line: bytes) -> None:
        self._check_finished()
        if not self.counts.checkpoints:
            raise MalformedError("it has no checkpoint")
        key_id = find_signing_key(line, end_line(self.counts, self._whole.hexdigest()))
        if key_id is None:
            raise MalformedError("what stands before its end does not match the digest there")
        self.signed_by, self._end = key_id, line
        if self._unnamed:
            raise MalformedError(f"the large value {min(self._unnamed)} belongs to nothing")


_SHARED = {"inputs": "held_inputs", "metadata": "metadata"}


# Opening a file for import: a plain file in place, a compressed one or a stream through a temporary file.


CHUNK = 256 * 1024
_GZIP = b"\x1f\x8b"


class Source:
    """The uncompressed content of a file, readable repeatedly and at any offset.

    Args:
        stream: a seekable stream.
        limits: the limits of sizes and counts.
    """

    def __init__(self, stream: IO[bytes], limits: ImportLimits) -> None:
        self._stream = stream
        self._limits = limits

    def lines(self) -> Iterator[bytes]:
        """Yield all lines, each with its line feed if it has one.

        Raises:
            MalformedError: a line, or the whole content, exceeds the limits.
        """
        most, offset = self._limits.max_value_bytes, 0
        while True:
            self._stream.seek(offset)  # another reader may have moved the position
            line = self._stream.readline(most + 1)
            if not line:
                return
            if len(line) > most:
                raise MalformedError(f"a line has more than {most} bytes (see --max-value-bytes)")
            offset += len(line)
            if offset > self._limits.max_bytes:
                raise MalformedError(f"it has more than {self._limits.max_bytes} bytes (see --max-bytes)")
            yield line

    def all(self) -> bytes:
        """Return the whole content, which must be no larger than one value may be."""
        self._stream.seek(0)
        most = min(self._limits.max_value_bytes, self._limits.max_bytes)
        content = self._stream.read(most + 1)
        if len(content) > most:
            raise MalformedError(f"it has more than {most} bytes (see --max-value-bytes)")
        return content

    def at(self, offset: int, size: int) -> bytes:
        """Return a part of the content.

        Args:
            offset: its start.
            size: its length in bytes.
        """
        self._stream.seek(offset)
        return self._stream.read(size)


@contextlib.asynccontextmanager
async def open_source(file: Path | str, limits: ImportLimits) -> AsyncIterator[Source]:
    """Open a file for the block. Compression is detected from the content, not from the name.

    Args:
        file: the file; `-` is standard input.
        limits: the limits of sizes and counts.

    Raises:
        SourceUnreadableError: the file cannot be read.
        ImportRefusedError: it is compressed, and cut, damaged or too large.
    """
    with contextlib.ExitStack() as stack:
        try:
            # On a thread that may be abandoned: a pipe may lack a writer.
            raw = stack.enter_context(await run_on_daemon(functools.partial(_open_file, file)))
            is_plain_file = stat.S_ISREG(os.fstat(raw.fileno()).st_mode)
            if is_plain_file and raw.read(len(_GZIP)) != _GZIP:
                yield Source(raw, limits)
            else:
                spool = stack.enter_context(tempfile.TemporaryFile(prefix="flowckpt-import-"))
                read = read_chunks if is_plain_file else read_pipe
                async with contextlib.aclosing(read(raw.fileno(), size=CHUNK)) as chunks:
                    await _spool(chunks, spool, limits)
                yield Source(spool, limits)
        except MalformedError as error:
            raise ImportRefusedError(str(error), file=str(file)) from None
        except OSError as error:
            raise SourceUnreadableError(str(file), detail=error.strerror or str(error)) from error


def _open_file(file: Path | str) -> IO[bytes]:
    if str(file) == "-":
        return os.fdopen(os.dup(sys.__stdin__.fileno()), "rb")  # type: ignore[union-attr]
    return Path(file).open("rb")


async def _spool(chunks: AsyncGenerator[bytes], spool: IO[bytes], limits: ImportLimits) -> None:
    beginning = b""
    while len(beginning) < len(_GZIP) and (chunk := await anext(chunks, b"")):
        beginning += chunk
    whole = _prepend(beginning, chunks)
    size = 0
    async with contextlib.aclosing(_decompress(whole, limits) if beginning.startswith(_GZIP) else whole) as parts:
        async for part in parts:
            size += len(part)
            if size > limits.max_bytes:
                raise MalformedError(f"it has more than {limits.max_bytes} bytes (see --max-bytes)")
            spool.write(part)
    spool.flush()


async def _prepend(beginning: bytes, chunks: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    if beginning:
        yield beginning
    async for chunk in chunks:
        yield chunk


async def _decompress(chunks: AsyncGenerator[bytes], limits: ImportLimits) -> AsyncGenerator[bytes]:
    """Yield what gzip has packed, a part at a time, as long as it does not swell beyond the ratio."""
    packed = unpacked = 0
    unpacker = zlib.decompressobj(wbits=31)
    async for chunk in chunks:
        if unpacker.eof:
            raise MalformedError(_FOLLOWED)
        packed += len(chunk)
        left = chunk
        while left:
            try:
                part = unpacker.decompress(left, CHUNK)
            except zlib.error as error:
                raise MalformedError(f"it is compressed, and damaged: {error}") from None
            unpacked += len(part)
            if unpacked > RATIO_FROM and unpacked > packed * limits.max_ratio:
                raise MalformedError(f"it is more than {limits.max_ratio} times larger than its file (see --max-ratio)")
            yield part
            if unpacker.unused_data:
                raise MalformedError(_FOLLOWED)
            left = unpacker.unconsumed_tail
    if not unpacker.eof:
        raise MalformedError("it is compressed, and cut")


_FOLLOWED = "something follows its compressed content"
_REMEDY = "Import a file that 'flowckpt export RUN -o FILE' wrote, unchanged."


@attrs.frozen
class ImportedRun:
    """An imported run.

    Attributes:
        workflow_id: its id in the store.
        source_id: its id in the file; empty for a single checkpoint, which does not contain it.
        workflow_name: its workflow.
        status: its status.
        attempts: the number of attempts that saved something.
        checkpoints: the number of checkpoints.
        left_behind: how many of these no longer count.
        steps: the number of results in its newest checkpoint.
        target: where its workflow was, on the machine it comes from.
        is_new: whether it was imported now; False if the identical run already existed.
        unauthenticated: why its approvals and signals do not count here; empty if they do, because the file was signed
            with a key of the store.
    """

    workflow_id: str
    source_id: str
    workflow_name: str
    status: str
    attempts: int
    checkpoints: int
    steps: int
    target: dict[str, str]
    is_new: bool
    left_behind: int = 0
    unauthenticated: str = ""

    def to_document(self) -> dict[str, Json]:
        """Return it as plain JSON, as printed by `flowckpt import --json`."""
        return attrs.asdict(self)


_CheckedFile: TypeAlias = tuple[ImportedRun, str, Callable[[], Iterable[CheckpointData]]]
"""The run in a file that was read to its end, its identity, and a function that reads its checkpoints again."""


async def import_run(
    store: CheckpointStore,
    file: Path | str,
    *,
    workflow_id: str | None = None,
    limits: ImportLimits | None = None,
    secrets: Iterable[Any] = (),
) -> ImportedRun:
    """Import a run from a file written by an export: a whole run, or the document of one checkpoint.

    The file is read twice: first it is checked line by line, without writing anything; then the store receives it
    atomically. After an interruption, repeat the import. A single checkpoint becomes a run that can be resumed from it.
    The approvals and signals in the file count if it was signed with a key of the store and keeps its run id.

    Args:
        store: the store to import into.
        file: the file, plain or gzip; `-` is standard input.
        workflow_id: the run id; by default the one in the file, or a new one for a single checkpoint.
        limits: how much to accept.
        secrets: values that must not be recorded, such as passwords. The run id and the file are searched for them,
            except for where the program is: its functions, files and directories.

    Raises:
        InputError: the given id is invalid, or a secret was found.
        ImportRefusedError: the file is truncated, changed, malformed, or exceeds a limit.
        UnsupportedSchemaError: a newer flowckpt has written it.
        SourceUnreadableError: the file cannot be read.
        RunExistsError: another run has the id.
        RunLockedError: another process is about to start that run.
        StoreAbilityError: the store cannot receive a whole run.
        CheckpointStorageError: the store failed.
    """
    store = adapt(store)
    limits = limits or ImportLimits()
    if workflow_id is not None:
        check_new_id(workflow_id)
    async with open_source(file, limits) as source:
        run, identity, checkpoints = await run_blocking(
            lambda: _check_file(source, str(file), workflow_id, limits, store.keys, KnownSecrets(secrets))
        )
        mark = True if run.unauthenticated else AUTHENTICATED
        is_new = await store_run(store, run.workflow_id, identity, lambda: _mark_imported(checkpoints(), mark))
    return run if is_new else attrs.evolve(run, is_new=False, unauthenticated="the run was there already")


def _describe_import(run_id: str, source_id: str, latest: CheckpointData, **counts: Any) -> ImportedRun:
    target = {str(key): str(text) for key, text in dict(latest.metadata.get("target", {})).items()}
    return ImportedRun(
        run_id,
        source_id,
        latest.workflow_name,
        latest.status.value,
        steps=len(latest.step_results),
        target=target,
        is_new=True,
        **counts,
    )


def _mark_imported(checkpoints: Iterable[CheckpointData], mark: bool | str) -> Iterator[CheckpointData]:
    """Mark each checkpoint of a workflow's run as imported; a task of a CheckpointManager names no program."""
    before: Mapping[str, Any] | None = None
    marked: Mapping[str, Any] = {}
    added = {IMPORTED: mark, BIRTH: new_token(16)}
    for data in checkpoints:
        if is_task(data):
            yield data
            continue
        if data.metadata is not before:  # a store writes once what is the very same object
            before, marked = data.metadata, {**data.metadata, **added}
        yield attrs.evolve(data, metadata=marked)


def _explain_unauthenticated(reader: RunReader, workflow_id: str, ring: KeyRing | None) -> str:
    """Return why the approvals and signals of a run do not count, or an empty text.

    Those under another id were given to another run: otherwise one approval would count for any number of imports.
    """
    if not reader.signed_by:
        return "the file is not signed"
    if ring is None:
        return f"the file is signed with key {reader.signed_by}, and this store has no key"
    if (key := ring.get(reader.signed_by)) is None:
        return f"the file is signed with key {reader.signed_by}, which is not a key of this store"
    if not reader.is_signed_with(key):
        return "the signature of the file does not match: the file was changed after its export"
    if reader.workflow_id != workflow_id:
        return "they were given to the run under its own id, not under the new one"
    return ""


def _check_file(
    source: Source,
    file: str,
    workflow_id: str | None,
    limits: ImportLimits,
    ring: KeyRing | None,
    secrets: KnownSecrets,
) -> _CheckedFile:
    with _refuse_malformed(file):
        first = next(source.lines(), b"")
        if not is_run(first):
            return _check_document(source, file, workflow_id, secrets)
    reader = RunReader(limits, secrets=secrets)
    with _refuse_malformed(file, reader):
        latest: CheckpointData | None = None
        run_id, standing = "", LeftBehindCounter()
        for latest in reader.checkpoints(source.lines()):
            if not run_id:
                run_id = check_run_id(reader.workflow_id) if workflow_id is None else workflow_id
                _refuse_secrets({"id": run_id}, secrets, "run")
            standing.add(latest)
        assert latest is not None, "a file without a checkpoint is refused"
        if reader.workflow_name != latest.workflow_name:
            raise MalformedError("its first line names another workflow than its checkpoints")

    def fetch(digest: str, size: int) -> bytes:
        content = source.at(reader.places[digest][0], size)
        if len(content) != size or sha256(content).hexdigest() != digest:
            raise ImportRefusedError(f"the large value {digest} has changed while it was imported", file=file)
        return content

    def read_again() -> Iterator[CheckpointData]:
        second = RunReader(limits, fetch)
        with _refuse_malformed(file, second):
            yield from second.checkpoints(source.lines())
            if second.identity.digest() != reader.identity.digest():
                raise MalformedError("it has changed while it was imported")

    run = _describe_import(
        run_id,
        str(reader.workflow_id),
        latest,
        attempts=reader.counts.attempts,
        checkpoints=reader.counts.checkpoints,
        left_behind=standing.count,
        unauthenticated=_explain_unauthenticated(reader, run_id, ring),
    )
    return run, reader.identity.hexdigest(), read_again


def _check_document(source: Source, file: str, workflow_id: str | None, secrets: KnownSecrets) -> _CheckedFile:
    data = parse_checkpoint(source.all(), secrets)
    if is_task(data) and data.step_results and data.reason is not Reason.STEP:
        raise ImportRefusedError(
            f"its checkpoint {data.checkpoint_id!r:.80} is not a committed step of a task of a CheckpointManager, and as "
            "a task by itself it would have nothing completed",
            file=file,
            remedy="Import the whole task, as 'flowckpt export TASK -o FILE' writes it, or the document of a committed step.",
        )
    run_id = new_run_id() if workflow_id is None else workflow_id
    run = WholeRun(run_id, [data])
    why = "the file is one checkpoint, and only whole runs are signed"
    imported = _describe_import(run_id, "", data, attempts=1, checkpoints=1, unauthenticated=why)
    return imported, identity_of(run_id, [data]), run.copy_checkpoints


@contextlib.contextmanager
def _refuse_malformed(file: str, reader: RunReader | None = None) -> Iterator[Any]:
    """Raise the error of a malformed file with the file and the line."""
    try:
        yield
    except (MalformedError, RecursionError) as error:
        detail = str(error) if isinstance(error, MalformedError) else "something in it is nested too deep"
        remedy = "" if "--" in detail else _REMEDY  # it names the option that is the remedy
        raise ImportRefusedError(detail, file=file, line=0 if reader is None else reader.line, remedy=remedy) from None
