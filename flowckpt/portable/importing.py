"""A run out of a file that anybody may have made, into a store."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import attrs

from flowckpt.blocking import run_blocking
from flowckpt.checkpoint import CheckpointData, Reason
from flowckpt.codec import Json
from flowckpt.errors import ImportRefusedError
from flowckpt.ids import new_run_id
from flowckpt.manager.task import is_task
from flowckpt.portable.arriving import brought_in
from flowckpt.portable.document import checkpoint_in
from flowckpt.portable.gathering import Gathered
from flowckpt.portable.limits import ImportLimits
from flowckpt.portable.lines import is_run
from flowckpt.portable.names import check_run_id, checked_new_id
from flowckpt.portable.reading import RunReader
from flowckpt.portable.source import Source, opened_source
from flowckpt.portable.standing import LeftBehind
from flowckpt.portable.strict_json import MalformedError
from flowckpt.portable.writing import identity_of
from flowckpt.stores.base import CheckpointStore

_REMEDY = "What can be imported, 'flowckpt export RUN -o FILE' writes; the file must come here as it was written."


@attrs.frozen
class ImportedRun:
    """A run that was imported.

    Attributes:
        workflow_id: its id in the store.
        source_id: its id in the file; empty where that was one checkpoint, which does not say it.
        workflow_name: its workflow.
        status: where it stood.
        attempts: attempts that saved something.
        checkpoints: checkpoints, in all.
        left_behind: how many of these no longer count.
        steps: results that its newest checkpoint holds.
        target: where its workflow was, on the machine that it comes from.
        is_new: whether it was imported now; False where the very same run was there already.
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

    def to_document(self) -> dict[str, Json]:
        """Return it as plain JSON: what `import --json` prints."""
        return attrs.asdict(self)


@attrs.frozen
class _Proved:
    """What was learned of a file when all of it was read."""

    workflow_id: str
    source_id: str
    identity: str
    checkpoints: Callable[[], Iterable[CheckpointData]]
    latest: CheckpointData
    attempts: int
    count: int
    left_behind: int = 0


async def import_run(
    store: CheckpointStore, file: Path | str, *, workflow_id: str | None = None, limits: ImportLimits | None = None
) -> ImportedRun:
    """Import a run from a file that `export` wrote: a whole run, or the document of one checkpoint.

    The file is read twice. First it is proved, line by line, and nothing is written; then the store takes it in, all of
    it or nothing. A process that dies on the way can simply be run again. One checkpoint becomes a run that a resume
    carries on from it.

    Args:
        store: where the run is to lie.
        file: the file, plain or compressed by gzip; `-` is standard input.
        workflow_id: the id that it is to have; the one in the file, or a new one for a single checkpoint, where not given.
        limits: how much is taken.

    Raises:
        InputError: the given id can be no id of a run.
        ImportRefusedError: the file is cut, changed, malformed, or goes beyond a limit.
        UnsupportedSchemaError: a newer flowckpt has written it.
        SourceUnreadableError: the file cannot be read.
        RunExistsError: another run has the id.
        RunLockedError: another process is about to begin that run.
        StoreAbilityError: the store cannot take a run in at once.
        CheckpointStorageError: the store failed.
    """
    limits = limits or ImportLimits()
    if workflow_id is not None:
        checked_new_id(workflow_id)
    with opened_source(file, limits) as source:
        proved = await run_blocking(lambda: _proved(source, str(file), workflow_id, limits))
        is_new = await brought_in(store, proved.workflow_id, proved.identity, proved.checkpoints)
    latest = proved.latest
    target = {str(key): str(text) for key, text in dict(latest.metadata.get("target", {})).items()}
    return ImportedRun(
        proved.workflow_id,
        proved.source_id,
        latest.workflow_name,
        latest.status.value,
        proved.attempts,
        proved.count,
        len(latest.step_results),
        target,
        is_new,
        proved.left_behind,
    )


def _proved(source: Source, file: str, workflow_id: str | None, limits: ImportLimits) -> _Proved:
    with _refusing(file):
        first = next(source.lines(), b"")
        if not is_run(first):
            return _proved_document(source, file, workflow_id)
    reader = RunReader(limits)
    with _refusing(file, reader):
        latest: CheckpointData | None = None
        attempts: set[int] = set()
        count, named, standing = 0, "", LeftBehind()
        for latest in reader.checkpoints(source.lines()):
            if not attempts:
                assert reader.header is not None, "it stands before the checkpoints"
                named = check_run_id(reader.header.workflow_id) if workflow_id is None else workflow_id
            attempts.add(latest.attempt)
            count += 1
            standing.add(latest)
        assert latest is not None, "a file without a checkpoint is refused"
        if reader.header is not None and reader.header.workflow_name != latest.workflow_name:
            raise MalformedError("its first line names another workflow than its checkpoints")

    places = dict(reader.places)

    def fetch(digest: str, size: int) -> bytes:
        content = source.at(places[digest][0], size)
        if len(content) != size or sha256(content).hexdigest() != digest:
            raise ImportRefusedError(f"the large value {digest} has changed while it was imported", file=file)
        return content

    def again() -> Iterator[CheckpointData]:
        second = RunReader(limits, fetch)
        with _refusing(file, second):
            yield from second.checkpoints(source.lines())
            if second.identity.digest() != reader.identity.digest():
                raise MalformedError("it has changed while it was imported")

    header = reader.header
    source_id = str(header.workflow_id) if header is not None else ""
    return _Proved(named, source_id, reader.identity.hexdigest(), again, latest, len(attempts), count, standing.count)


def _proved_document(source: Source, file: str, workflow_id: str | None) -> _Proved:
    data = checkpoint_in(source.all())
    if is_task(data) and data.step_results and data.reason is not Reason.STEP:
        raise ImportRefusedError(
            f"its checkpoint {data.checkpoint_id!r:.80} is none behind which a task of a CheckpointManager stands, and as "
            "a task by itself it would have nothing completed",
            file=file,
            remedy="Import the whole task, as 'flowckpt export TASK -o FILE' writes it, or the document of a committed step.",
        )
    named = new_run_id() if workflow_id is None else workflow_id
    run = Gathered(named, [data])
    return _Proved(named, "", identity_of(named, [data]), run.afresh, data, 1, 1)


@contextlib.contextmanager
def _refusing(file: str, reader: RunReader | None = None) -> Iterator[Any]:
    """Say of what is malformed where it stands."""
    try:
        yield
    except MalformedError as error:
        line, said = 0 if reader is None else reader.line, str(error)
        remedy = "" if "--" in said else _REMEDY  # it names the option that is the remedy
        raise ImportRefusedError(said, file=file, line=line, remedy=remedy) from None
    except RecursionError:
        line = 0 if reader is None else reader.line
        said = "something in it is nested too deep"
        raise ImportRefusedError(said, file=file, line=line, remedy=_REMEDY) from None
