"""What can be asked of the runs of an SQL store, without owning them and without writing anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from flowckpt.core.codec.blob import Blob, Fetch
from flowckpt.core.records import CheckpointData
from flowckpt.core.records.checkpoint import verified_after
from flowckpt.core.records.listing import EVERY, CheckpointRef, Owner, RunFilter, RunInfo, Selection
from flowckpt.core.records.statistics import StoreStatistics
from flowckpt.core.records.wait import Signal
from flowckpt.core.system.numbers import counted
from flowckpt.errors import CheckpointCorruptedError, CheckpointNotFoundError, FlowckptError
from flowckpt.stores.base import Finding, RunSurvey
from flowckpt.stores.sql import rows, signals
from flowckpt.stores.sql.database import Database, Session
from flowckpt.stores.sql.finding import find_runs
from flowckpt.stores.sql.image import RunImage, checkpoint_rows, open_image, read_blob
from flowckpt.stores.sql.rows import REFERENCE, id_text, live_owner, moment_of, name_of, reference_of, sql_time
from flowckpt.stores.sql.statistics import read_figures
from flowckpt.stores.sql.summary import run_infos, survey, tell_left_out, unreadable

# The check of an SQL store: the database itself, and every run, result and large value in it.


def check_all(database: Database, fetch_for: Callable[[str], Fetch]) -> list[Finding]:
    """Verify the database and all runs in it.

    Args:
        database: the database.
        fetch_for: returns what reads the large values of a run.
    """
    findings = [Finding("", "corrupt", damage) for damage in database.damages()]
    try:
        found = database.read("", "check", lambda session: session.execute("SELECT workflow_id FROM runs ORDER BY run"))
    except FlowckptError as error:
        known = {finding.detail for finding in findings}  # the database may have said the very same of itself
        return findings if error.message in known else [*findings, Finding("", "corrupt", error.message)]
    for (key,) in found:
        workflow_id = name_of(key)
        finding = check_run(database, workflow_id, fetch_for(workflow_id))
        if finding is not None:
            findings.append(finding)
    return findings


def check_run(database: Database, workflow_id: str, fetch: Fetch) -> Finding | None:
    """Verify a run with all that its attempts left behind; None where there is none.

    Args:
        database: the database.
        workflow_id: the run.
        fetch: reads its large values.
    """
    key = id_text(workflow_id)

    def check(session: Session) -> Finding | None:
        now = open_image(session, workflow_id, key)
        if now is None:
            return None
        begun = session.execute("SELECT attempt FROM attempts WHERE run = ? AND begun_at IS NOT NULL", (now.run,))
        kept, results = 0, 0
        for (attempt,) in begun:
            image = open_image(session, workflow_id, key, attempt=attempt)
            assert image is not None, "the transaction is of one moment"
            found = _check_image(session, image, attempt, fetch)
            results = len(image.history.results)
            if now.links and attempt == now.links[-1].attempt:
                kept = len(found)
                _check_row(image, run_infos(session, key), found)
        for digest, size in session.execute("SELECT digest, size FROM blobs WHERE run = ?", (now.run,)):
            read_blob(session, workflow_id, key, digest, size)
        signals.sent(session, workflow_id)
        return (
            Finding(workflow_id, "ok", f"{counted(kept, 'checkpoint')}, {counted(results, 'result')}")
            if begun
            else None
        )

    try:
        return database.read(workflow_id, "check", check)
    except CheckpointNotFoundError:  # it was cleared meanwhile
        return None
    except FlowckptError as error:
        return Finding(workflow_id, "corrupt", error.message)


def _check_row(image: RunImage, listed: list[RunInfo], newest_first: list[CheckpointData]) -> None:
    """Compare the row of the run, which lists show, with its checkpoints."""
    if not newest_first:
        return
    oldest = CheckpointRef.of(image.workflow_id, newest_first[-1])
    field = listed[0].contradicted_by(newest_first[0], oldest) if listed else "latest_sequence"
    if field:
        raise image.corrupt("runs", f"its column {field} does not say what its checkpoints say")


def _check_image(session: Session, image: RunImage, attempt: int, fetch: Fetch) -> list[CheckpointData]:
    """Verify a run as an attempt left it; return its checkpoints, newest first."""
    image.read_results(session, fetch)
    _check_columns(session, image, attempt)
    _check_verified(session, image)
    found = image.all(session, fetch)
    for blobs in image.history.blobs.values():
        for blob in blobs.values():
            blob.content()
    for data in found:
        for held in data.held_values:
            if isinstance(held, Blob):
                held.content()
    return found


def _check_verified(session: Session, image: RunImage) -> None:
    """Compare what the checkpoints say of the evidence, which lists show, with what the results say."""
    answer: bool | None = None
    before = 0
    columns = "sequence, steps, verified"
    for sequence, steps, said in reversed(checkpoint_rows(session, image.run, image.links, columns)):
        answer = verified_after(answer, image.history.results[before:steps])
        before = steps
        if (None if said is None else bool(said)) is not answer:
            raise image.corrupt(f"checkpoint {sequence}", "its column verified does not say what its results say")


def _check_columns(session: Session, image: RunImage, attempt: int) -> None:
    """Compare the columns of an attempt's own results, which people query, with the documents, which programs read."""
    columns = ", ".join(name for name in rows.RESULT_COLUMNS if name != "document")
    found = session.execute(
        f"SELECT {columns}, CAST(document AS TEXT) FROM step_results WHERE run = ? AND attempt = ? ORDER BY position",  # noqa: S608
        (image.run, attempt),
    )
    place = list(rows.RESULT_COLUMNS).index("started_at")
    for row in found:
        held = [*row]
        position, text = held[2], held[-1]
        if position > len(image.history.results):
            raise image.corrupt(f"result {position} of attempt {attempt}", "it is behind the end of its attempt")
        held[6] = bool(held[6])
        try:
            held[place] = None if held[place] is None else sql_time(moment_of(held[place]))
        except ValueError as error:
            raise image.corrupt(f"result {position} of attempt {attempt}", f"its column started_at: {error}") from error
        result = image.history.results[position - 1]
        if tuple(held) != rows.result_row(result, text.encode(), image.run, attempt, position):
            raise image.corrupt(
                f"result {position} of attempt {attempt}", "its columns do not say what its document says"
            )


T = TypeVar("T")
_PAGE = 1000


class ReadableRuns:
    """The runs of an SQL store, to be read.

    Args:
        database: where they are.
    """

    def __init__(self, database: Database) -> None:
        self.database = database

    def _fetch(self, workflow_id: str) -> Fetch:
        key = id_text(workflow_id)

        def fetch(digest: str, size: int) -> bytes:
            content = self.database.read(
                workflow_id, "read", lambda session: read_blob(session, workflow_id, key, digest, size)
            )
            if content is None:
                raise CheckpointNotFoundError(workflow_id, detail="it was cleared")
            return content

        return fetch

    def _with_image(
        self, workflow_id: str, work: Callable[[Session, RunImage], T], *, attempt: int | None = None
    ) -> T | None:
        """Do work on a run as it is, or as an attempt left it; None where there is no such run or attempt."""
        key = id_text(workflow_id)

        def look(session: Session) -> T | None:
            image = open_image(session, workflow_id, key, attempt=attempt)
            return None if image is None else work(session, image)

        return self.database.read(workflow_id, "read", look)

    def _loaded(
        self,
        workflow_id: str,
        checkpoint_id: str | None = None,
        selection: Selection = EVERY,
        *,
        left_by: int | None = None,
    ) -> CheckpointData | None:
        fetch = self._fetch(workflow_id)

        def load(session: Session, image: RunImage) -> CheckpointData | None:
            image.read_results(session, fetch)
            return image.newest(session, fetch, checkpoint_id, selection)

        return self._with_image(workflow_id, load, attempt=left_by)

    def latest(self, workflow_id: str, selection: Selection = EVERY) -> CheckpointData | None:
        """Return the newest checkpoint of a run that is wanted."""
        return self._loaded(workflow_id, selection=selection)

    def latest_of_attempt(self, workflow_id: str, attempt: int) -> CheckpointData | None:
        """Return the last checkpoint of an attempt, as the attempt left it."""
        found = self._loaded(workflow_id, left_by=attempt)
        return found if found is not None and found.attempt == attempt else None

    def load(self, workflow_id: str, checkpoint_id: str) -> CheckpointData:
        """Return the newest checkpoint of an id."""
        found = self._loaded(workflow_id, id_text(checkpoint_id))
        if found is not None:
            return found
        if not self.references(workflow_id):
            raise CheckpointNotFoundError(workflow_id)
        raise CheckpointNotFoundError(workflow_id, checkpoint_id)

    def references(
        self, workflow_id: str, selection: Selection = EVERY, *, left_by: int | None = None
    ) -> list[CheckpointRef]:
        """Return the checkpoints of a run that are wanted, newest first; as an attempt left it where one is given."""
        found = self._with_image(
            workflow_id,
            lambda session, image: checkpoint_rows(session, image.run, image.links, REFERENCE, selection=selection),
            attempt=left_by,
        )
        return [reference_of(workflow_id, row) for row in found or ()]

    def references_of_attempt(self, workflow_id: str, attempt: int) -> list[CheckpointRef]:
        """Return the checkpoints of an attempt, oldest first, as the attempt left them."""
        return self.references(workflow_id, Selection(attempt=attempt), left_by=attempt)[::-1]

    def attempts(self, workflow_id: str) -> list[int]:
        """Return the numbers of the attempts that wrote something, ascending."""
        statement = (
            "SELECT a.attempt FROM attempts a JOIN runs r ON r.run = a.run "
            "WHERE r.workflow_id = ? AND a.begun_at IS NOT NULL ORDER BY a.attempt"
        )
        found = self.database.read(
            workflow_id, "read", lambda session: session.execute(statement, (id_text(workflow_id),))
        )
        return [attempt for (attempt,) in found]

    def figures(self, workflow_id: str | None, limit: int) -> StoreStatistics:
        """Return what the database holds in figures, or one run of it."""
        dialect = self.database.dialect

        def read(session: Session) -> StoreStatistics | None:
            try:
                return read_figures(session, dialect, workflow_id, limit)
            except (TypeError, ValueError) as error:  # a date or a status that is none
                raise CheckpointCorruptedError(
                    workflow_id or "", location="the database", detail=f"the figures cannot be read: {error}"
                ) from error

        found = self.database.read(workflow_id or "", "count", read)
        if found is None:
            raise CheckpointNotFoundError(workflow_id or "")
        return found

    def sequences(self, workflow_id: str, checkpoint_id: str) -> list[int]:
        """Return the sequences of the checkpoints of an id."""
        found = self._with_image(
            workflow_id,
            lambda session, image: checkpoint_rows(
                session, image.run, image.links, "sequence", checkpoint_id=id_text(checkpoint_id)
            ),
        )
        return [sequence for (sequence,) in found or ()]

    def data_of_attempt(self, workflow_id: str, attempt: int) -> list[CheckpointData]:
        """Return the checkpoints of an attempt whole, oldest first, as the attempt left them."""
        fetch = self._fetch(workflow_id)

        def load(session: Session, image: RunImage) -> list[CheckpointData]:
            image.read_results(session, fetch)
            return image.all(session, fetch)

        found = self._with_image(workflow_id, load, attempt=attempt)
        return [data for data in (found or [])[::-1] if data.attempt == attempt]

    def owner(self, workflow_id: str) -> Owner | None:
        """Return who owns a run and is alive."""

        def look(session: Session) -> Owner | None:
            runs = session.execute("SELECT run FROM runs WHERE workflow_id = ?", (id_text(workflow_id),))
            return live_owner(session, runs[0][0]) if runs else None

        return self.database.read(workflow_id, "read", look)

    def list_runs(self) -> list[RunInfo]:
        """Return the runs, the one started last first."""
        return self.database.read("", "list", run_infos)

    def survey(self, wanted: RunFilter | None = None) -> RunSurvey:
        """Return the runs, and those whose row is damaged; of some runs, as far as these are met on the way."""
        if wanted is None or wanted == RunFilter():
            return self.database.read("", "list", survey)
        return find_runs(self.database, wanted)

    def unreadable(self) -> list[Finding]:
        """Return the runs whose row is damaged, looked for a page at a time."""
        found: list[Finding] = []
        after: int | None = 0
        while after is not None:
            place = after
            some, after = self.database.read("", "list", lambda session, place=place: unreadable(session, place, _PAGE))  # type: ignore[misc]
            found += some
        return found

    def find_runs(self, wanted: RunFilter) -> list[RunInfo]:
        """Return the runs that are wanted, the one started last first, by an index."""
        found = find_runs(self.database, wanted)
        tell_left_out(found.unreadable)
        return [*found.runs]

    def describe(self, workflow_id: str) -> RunInfo | None:
        """Return one run as the list shows it; None where there is none."""
        found = self.database.read(workflow_id, "read", lambda session: run_infos(session, id_text(workflow_id)))
        return found[0] if found else None

    def signals(self, workflow_id: str) -> list[Signal]:
        """Return the messages for a run, in the order in which they were sent."""
        return self.database.read(workflow_id, "read", lambda session: signals.sent(session, workflow_id))

    def check(self, workflow_id: str | None) -> list[Finding]:
        """Verify one run, or all of them and the database."""
        if workflow_id is None:
            return check_all(self.database, self._fetch)
        finding = check_run(self.database, workflow_id, self._fetch(workflow_id))
        if finding is None:
            raise CheckpointNotFoundError(workflow_id)
        return [finding]
