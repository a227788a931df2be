"""What can be asked of the runs of an SQL store, without owning them and without writing anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from flowckpt.checkpoint import CheckpointData
from flowckpt.checkpoint.figures import StoreFigures
from flowckpt.checkpoint.reference import CheckpointRef, Owner, RunInfo
from flowckpt.checkpoint.run_filter import RunFilter
from flowckpt.checkpoint.selection import EVERY, Selection
from flowckpt.checkpoint.signal import Signal
from flowckpt.codec.blob import Fetch
from flowckpt.errors import CheckpointNotFoundError
from flowckpt.stores.integrity import Finding
from flowckpt.stores.sql import signals
from flowckpt.stores.sql.checking import check_all, check_run
from flowckpt.stores.sql.database import Database, Session
from flowckpt.stores.sql.description import run_infos, survey, tell_left_out, unreadable
from flowckpt.stores.sql.figures import read_figures
from flowckpt.stores.sql.finding import find_runs
from flowckpt.stores.sql.image import RunImage, open_image, read_blob
from flowckpt.stores.sql.leases import live_owner
from flowckpt.stores.sql.lineage import checkpoint_rows
from flowckpt.stores.sql.references import REFERENCE, reference_of
from flowckpt.stores.sql.texts import id_text
from flowckpt.stores.surveying import RunSurvey

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

    def figures(self, workflow_id: str | None, limit: int) -> StoreFigures:
        """Return what the database holds in figures, or one run of it."""
        dialect = self.database.dialect
        found = self.database.read(
            workflow_id or "", "count", lambda session: read_figures(session, dialect, workflow_id, limit)
        )
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
