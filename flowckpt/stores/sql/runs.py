"""The runs of an SQL store, to be owned: claimed, saved to, given up, cleared. Synchronous; `store` is its async door."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterable, Mapping

from flowckpt.core.records import CheckpointData
from flowckpt.core.records.listing import CheckpointRef
from flowckpt.core.records.wait import Signal
from flowckpt.core.system.process import ProcessIdentity, current_process
from flowckpt.errors import CheckpointNotFoundError, FencedError, RunLockedError
from flowckpt.stores.base import Lease
from flowckpt.stores.leases import Heartbeat, LeaseTimes
from flowckpt.stores.sql import signals
from flowckpt.stores.sql.claims import Claim, clear_run, give_up, renew
from flowckpt.stores.sql.database import Database, Session
from flowckpt.stores.sql.image import RunImage
from flowckpt.stores.sql.owned_run import OwnedRun
from flowckpt.stores.sql.reading import ReadableRuns
from flowckpt.stores.sql.receive import Arrival
from flowckpt.stores.sql.rows import NAMED_BLOBS, id_text


class SqlRuns(ReadableRuns):
    """The runs of an SQL store, and those among them that this process owns.

    Args:
        database: where they are.
        lease_seconds: how long a run stays owned without a sign of life of its owner.
        process: tells which process this is, for tests.

    Attributes:
        owned: the runs that this process owns.
    """

    def __init__(
        self,
        database: Database,
        *,
        lease_seconds: float,
        process: Callable[[], ProcessIdentity] = current_process,
    ) -> None:
        super().__init__(database)
        self.owned: dict[str, OwnedRun] = {}
        self._times = LeaseTimes(lease_seconds)
        self._process = process
        self._heartbeat = Heartbeat(self.renew_leases, self._times.interval)

    def close(self) -> None:
        """Give up every run that this process owns."""
        for workflow_id in list(self.owned):
            self.release(workflow_id)
        self._heartbeat.stop()
        self.database.close()

    def save(self, workflow_id: str, data: CheckpointData) -> None:
        """Add a checkpoint with its new results, and commit."""
        owned = self.owned.get(workflow_id)
        if owned is None:
            owned = self._own_for(workflow_id, data.attempt)
        owned.save(data)

    def _own_for(self, workflow_id: str, attempt: int) -> OwnedRun:
        """Claim a run for a caller that saves without having acquired it."""
        lease = self.acquire(workflow_id, steal=False, at_least=attempt)
        if lease.attempt != attempt:
            self.release(workflow_id)
            raise FencedError(workflow_id, attempt=attempt, newest_attempt=lease.attempt - 1)
        return self.owned[workflow_id]

    def acquire(self, workflow_id: str, *, steal: bool, at_least: int = 1) -> Lease:
        """Claim the run's next attempt, then read the run."""
        mine = self.owned.get(workflow_id)
        if mine is not None and not steal:
            raise RunLockedError(workflow_id, holder=f"this process, by a store in {self.database}")
        key, lock = id_text(workflow_id), self.database.dialect.lock
        instead_of = mine.writer if mine is not None and mine.is_mine else ""
        claim = Claim(
            workflow_id,
            key,
            secrets.token_hex(16),
            self._process(),
            self._times.seconds,
            at_least=at_least,
            steal=steal,
            instead_of=instead_of,
        )
        run, attempt = self.database.write(workflow_id, "acquire", lambda session: claim.make(session, lock))
        if mine is not None:
            self.owned.pop(workflow_id).close()
        fetch = self._fetch(workflow_id)

        def read(session: Session, image: RunImage) -> tuple[RunImage, CheckpointData | None]:
            image.read_results(session, fetch)
            image.blobs = {digest for (digest,) in session.execute(NAMED_BLOBS, (image.run,))}
            return image, image.newest(session, fetch)

        try:
            found = self._with_image(workflow_id, read)
            if found is None:
                raise CheckpointNotFoundError(workflow_id, detail="it was cleared meanwhile")
        except BaseException:
            self.database.write(workflow_id, "release", lambda session: give_up(session, lock, run, claim.writer))
            raise
        image, latest = found
        owned = OwnedRun(self.database, image, attempt=attempt, writer=claim.writer, fetch=fetch)
        self.owned[workflow_id] = owned
        self._heartbeat.start()
        return Lease(workflow_id, attempt, latest, image.last_sequence, token=claim.writer)

    def renew(self, workflow_id: str) -> None:
        """Find out what became of a save whose outcome is unknown, so that more can be saved."""
        owned = self.owned.get(workflow_id)
        if owned is not None and owned.is_mine:
            owned.settle()

    def renew_leases(self) -> bool:
        """Renew the leases of all owned runs, and tell of those that are lost; tell whether there are any."""
        mine = {owned.writer: (workflow_id, owned) for workflow_id, owned in [*self.owned.items()] if owned.is_mine}
        if mine:
            seconds = self._times.seconds
            lost = self.database.write("", "renew", lambda session: renew(session, [*mine], seconds))
            for workflow_id, owned in map(mine.__getitem__, lost):
                if self.owned.get(workflow_id) is owned:  # else it was given up or cleared here, meanwhile
                    owned.tell_lost()
        return bool(mine)

    def tell_when_lost(self, workflow_id: str, tell: Callable[[FencedError], None]) -> None:
        """Have somebody told once a run is lost."""
        owned = self.owned.get(workflow_id)
        if owned is not None:
            owned.on_lost = tell

    def release(self, workflow_id: str, *, token: str = "") -> None:
        """Give a run up, if whoever has the token owns it still."""
        owned = self.owned.get(workflow_id)
        if owned is None or token not in ("", owned.writer):
            return
        del self.owned[workflow_id]
        owned.close()
        if owned.is_mine:
            lock = self.database.dialect.lock
            self.database.write(workflow_id, "release", lambda session: give_up(session, lock, owned.run, owned.writer))

    def share(self, source_id: str, workflow_id: str, sizes: Mapping[str, int]) -> None:
        """Let an owned run have large values of another without a copy."""
        owned = self.owned.get(workflow_id)
        if owned is not None:
            owned.share_from(source_id, sizes)

    def clear(self, workflow_id: str) -> None:
        """Remove a run, with all that belongs to it."""
        key, lock = id_text(workflow_id), self.database.dialect.lock
        owned = self.owned.get(workflow_id)
        mine = owned.writer if owned is not None and owned.is_mine else ""
        self.database.write(workflow_id, "clear", lambda session: clear_run(session, lock, workflow_id, key, mine=mine))
        if owned is not None:
            self.owned.pop(workflow_id).close()

    def receive(self, workflow_id: str, checkpoints: Callable[[], Iterable[CheckpointData]]) -> None:
        """Add a whole run, in one transaction."""
        arrival = Arrival(
            workflow_id,
            checkpoints,
            process=self._process(),
            lease_seconds=self._times.seconds,
            dialect=self.database.dialect,
        )
        self.database.write(workflow_id, "receive", arrival.write)

    def send_signal(self, workflow_id: str, signal: Signal) -> bool:
        """Add a message for a run, whoever owns it; tell whether it is new."""
        dialect = self.database.dialect
        return self.database.write(
            workflow_id, "signal", lambda session: signals.send(session, dialect, workflow_id, signal)
        )

    def remove_signals(self, workflow_id: str, signal_ids: Collection[str]) -> None:
        """Remove messages for a run."""
        if signal_ids:
            self.database.write(workflow_id, "signal", lambda session: signals.remove(session, workflow_id, signal_ids))

    def delete(self, workflow_id: str, checkpoint_id: str) -> bool:
        """Delete the checkpoints of an id; tell whether there was one."""
        return bool(self.delete_where(workflow_id, lambda reference: reference.checkpoint_id == checkpoint_id))

    def delete_where(self, workflow_id: str, wanted: Callable[[CheckpointRef], bool]) -> int:
        """Delete checkpoints; return how many.

        Args:
            workflow_id: the run.
            wanted: tells which.
        """
        is_mine = workflow_id in self.owned
        doomed = [reference.sequence for reference in self.references(workflow_id) if wanted(reference)]
        if not doomed:
            return 0  # so that nothing is claimed, or refused, for nothing
        if not is_mine:
            self.acquire(workflow_id, steal=False)
            doomed = [reference.sequence for reference in self.references(workflow_id) if wanted(reference)]
        try:
            if doomed:
                self.owned[workflow_id].delete(doomed)
        finally:
            if not is_mine:
                self.release(workflow_id)
        return len(doomed)
