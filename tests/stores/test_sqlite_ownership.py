"""One writer a run in the SQLite store, among real processes."""

from __future__ import annotations

import contextlib
import sqlite3

import pytest

from flowckpt.errors import CheckpointCorruptedError
from flowckpt.stores.leases import LeaseTimes
from flowckpt.stores.sql.rows import REPLACE_INDEX, live_note_name
from flowckpt.testing.contract import checkpoint, results
from tests.stores.peers import RUN, elsewhere
from tests.stores.sql_ownership import SqlOwnership


class TestSqliteOwnership(SqlOwnership):
    @pytest.fixture
    def spec(self, tmp_path):
        return f"sqlite:{tmp_path / 'runs.db'}"

    @pytest.fixture
    def execute(self, tmp_path):
        """Execute a statement in the file, through another connection."""

        def run(statement):
            with contextlib.closing(sqlite3.connect(tmp_path / "runs.db")) as connection, connection:
                return connection.execute(statement).fetchall()

        return run

    def test_a_generation_that_cannot_read_the_run_leaves_it_without_an_owner(self, store, another, execute):
        store.runs.acquire(RUN, take_over=False)
        store.runs.save(RUN, checkpoint(1, results("x")))
        execute("UPDATE runs SET head_attempt = 7")
        with pytest.raises(CheckpointCorruptedError):
            store.runs.begin_generation(RUN)
        store.runs.release(RUN)
        assert another.runs.owner(RUN) is None
        execute("UPDATE runs SET head_attempt = 1")
        assert another.runs.acquire(RUN, take_over=False).attempt == 2

    @pytest.mark.parametrize("end", ["release", "import"])
    def test_the_live_note_of_a_run_without_saves_goes_with_it(self, store, another, execute, end):
        """PostgreSQL keeps live notes in this table."""
        store.runs._times, store.runs._process = LeaseTimes(-10.0), elsewhere  # another process may import at once
        store.runs.acquire(RUN, take_over=False)
        note = live_note_name(store.runs.owned[RUN].run), b"{}"
        store.runs.database.write(RUN, "note", lambda session: session.change(REPLACE_INDEX, note))
        if end == "release":
            store.runs.release(RUN)
        else:
            another.runs.receive_run(RUN, lambda: [checkpoint()])
        assert execute("SELECT name FROM result_index") == []
