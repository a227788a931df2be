"""Taking in a whole run: each of its saves as it would be done, and all of them in one transaction."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from typing import TypeVar

from flowckpt.core.records import CheckpointData
from flowckpt.core.system.process import ProcessIdentity
from flowckpt.errors import RunExistsError, RunLockedError
from flowckpt.stores.sql import rows
from flowckpt.stores.sql.claims import Claim, give_up
from flowckpt.stores.sql.database import Addition, Session
from flowckpt.stores.sql.image import open_image
from flowckpt.stores.sql.owned_run import OwnedRun
from flowckpt.stores.sql.rows import id_text, live_owner
from flowckpt.stores.sql.schema import Dialect

T = TypeVar("T")


class OneTransaction:
    """A database whose every work is part of a transaction that is open already.

    Args:
        session: the transaction.
        dialect: how statements are written.
    """

    def __init__(self, session: Session, dialect: Dialect) -> None:
        self._session = session
        self.dialect = dialect

    def read(self, workflow_id: str, operation: str, work: Callable[[Session], T]) -> T:
        """Do work that reads."""
        del workflow_id, operation
        return work(self._session)

    def write(self, workflow_id: str, operation: str, work: Callable[[Session], T]) -> T:
        """Do work that writes."""
        del workflow_id, operation
        return work(self._session)

    def add(self, addition: Addition) -> bool:
        """Write the rows of a save."""
        change = self._session.change
        if not change(rows.ADVANCE, addition.advance):
            return False
        for row in addition.results:
            change(rows.ADD_RESULT, row)
        change(rows.ADD_CHECKPOINT, addition.checkpoint)
        for statement, others in addition.others:
            for row in others:
                change(statement, row)
        return True

    def settle(self, addition: Addition) -> bool:
        """Write the rows of a save: within one transaction no outcome is unknown."""
        return self.add(addition)

    def probe(self) -> None:
        """Do nothing: it is not asked."""

    def mark(self) -> object:
        """Return None: it is not asked."""
        return None

    def damages(self) -> list[str]:
        """Return nothing: it is not asked."""
        return []

    def give_back_space(self) -> None:
        """Do nothing: there is nothing to give back."""

    def close(self) -> None:
        """Leave the transaction to whoever opened it."""


class Arrival:
    """A run that is to be taken in.

    Args:
        workflow_id: the run.
        checkpoints: returns its checkpoints, attempt by attempt and the oldest first.
        process: who takes it in.
        lease_seconds: how long a lease would last.
        dialect: how statements are written.
    """

    def __init__(
        self,
        workflow_id: str,
        checkpoints: Callable[[], Iterable[CheckpointData]],
        *,
        process: ProcessIdentity,
        lease_seconds: float,
        dialect: Dialect,
    ) -> None:
        self._workflow_id = workflow_id
        self._checkpoints = checkpoints
        self._process = process
        self._lease_seconds = lease_seconds
        self._dialect = dialect
        self._token = secrets.token_hex(12)

    def write(self, session: Session) -> None:
        """Write all of it. Done again, after its answer was lost, it finds that it was done.

        Args:
            session: the transaction.

        Raises:
            RunExistsError: there is such a run.
            RunLockedError: another process is about to begin it.
        """
        if session.execute("SELECT 1 FROM attempts WHERE writer LIKE ?", (f"{self._token}-%",)):
            return
        self._make_way(session)
        database = OneTransaction(session, self._dialect)
        owned: OwnedRun | None = None
        for data in self._checkpoints():
            if owned is None or data.attempt != owned.attempt:
                if owned is not None:
                    give_up(session, self._dialect.lock, owned.run, owned.writer)
                owned = self._claimed(session, database, data.attempt)
            owned.save(data)
        if owned is not None:
            give_up(session, self._dialect.lock, owned.run, owned.writer)

    def _make_way(self, session: Session) -> None:
        """Remove a run under which nothing was ever saved."""
        select = f"SELECT run, writer FROM runs WHERE workflow_id = ?{self._dialect.lock}"  # noqa: S608
        for run, writer in session.execute(select, (id_text(self._workflow_id),)):
            if session.execute("SELECT 1 FROM attempts WHERE run = ? AND begun_at IS NOT NULL LIMIT 1", (run,)):
                raise RunExistsError(self._workflow_id)
            if writer and (owner := live_owner(session, run)) is not None:
                raise RunLockedError(self._workflow_id, holder=str(owner))
            session.change("DELETE FROM runs WHERE run = ?", (run,))

    def _claimed(self, session: Session, database: OneTransaction, attempt: int) -> OwnedRun:
        key = id_text(self._workflow_id)
        writer = f"{self._token}-{attempt}"
        claim = Claim(self._workflow_id, key, writer, self._process, self._lease_seconds, at_least=attempt)
        claim.make(session, self._dialect.lock)
        image = open_image(session, self._workflow_id, key)
        assert image is not None, "it was claimed just now"
        image.read_results(session, self._not_read)
        image.blobs = {digest for (digest,) in session.execute(rows.NAMED_BLOBS, (image.run,))}
        return OwnedRun(database, image, attempt=attempt, writer=writer, fetch=self._not_read)

    def _not_read(self, digest: str, size: int) -> bytes:
        raise RuntimeError(f"the large value {digest} of {size} bytes is not to be read before it is there")
