"""The ported programs, by the command: killed by SIGKILL at a save, resumed, and compared with a clean run."""

from __future__ import annotations

import itertools
import json
import os
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests import forked
from tests.examples.killed_at_a_sync import begin

EXAMPLES = Path(__file__).parents[2] / "examples"

PROGRAMS = {
    "booking_saga": ([], 0, ("bookings.db", "SELECT action, part FROM books ORDER BY rowid")),
    "booking_saga, cancelled": (["seats=0"], 1, ("bookings.db", "SELECT action, part FROM books ORDER BY rowid")),
    "money_transfer": ([], 0, ("bank.db", "SELECT account, amount FROM ledger ORDER BY rowid")),
    "money_transfer, returned": (
        ["target=nobody"], 0, ("bank.db", "SELECT account, amount FROM ledger ORDER BY rowid"),
    ),
    "resource_pool": (
        ["jobs=4"], 0,
        ("pool.db", "SELECT job, result FROM done UNION ALL SELECT name, lease FROM machines ORDER BY 1, 2"),
    ),
    "document_ingest": (["folder=papers"], 0, ("index.db", "SELECT * FROM parts ORDER BY document, number")),
    "sliding_window": (["items=9"], 0, ("window.db", "SELECT item FROM sent ORDER BY item")),
    "first_of_several": ([], 0, ("orders.db", "SELECT supplier, sheets FROM orders")),
    "endless_loop": (["inbox=papers"], 0, ("taken.db", "SELECT name, text FROM files ORDER BY name")),
}  # fmt: skip


class World:
    """A directory in which the command runs."""

    def __init__(self, directory, program):
        self.directory = directory
        self.example = EXAMPLES / f"{program.partition(',')[0]}.py"
        self.inputs, self.code, (database, self.query) = PROGRAMS[program]
        self.database = directory / database
        (directory / "papers").mkdir(parents=True)
        for name in ("a", "b", "c"):
            (directory / "papers" / f"{name}.txt").write_text(f"about {name}\n\nmore\n\nend of {name}\n")
        if program == "endless_loop":
            (directory / "papers" / "stop").touch()

    def flowckpt(self, *words, **environ):
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(EXAMPLES.parent), "NO_COLOR": "1", **environ}
        return forked.run(["-m", "flowckpt", *words], cwd=self.directory, env=environment, begins=begin)

    def run(self, **environ):
        inputs = [word for pair in self.inputs for word in ("-i", pair)]
        return self.flowckpt("run", str(self.example), "--id", "one", *inputs, "--json", **environ)

    @property
    def ledger(self):
        with closing(sqlite3.connect(self.database)) as database:
            return database.execute(self.query).fetchall()


@pytest.mark.parametrize(("program", "moment"), [*zip(PROGRAMS, itertools.cycle(["before", "after"]))])
def test_a_killed_program_ends_as_a_clean_one(tmp_path, program, moment):
    world = World(tmp_path / "clean", program)
    done = world.run()
    assert done.returncode == world.code, done.stderr
    output, ledger = json.loads(done.stdout)["output"], world.ledger
    synced = int((world.directory / "synced").read_text())
    world = World(tmp_path / "killed", program)
    kill_at = max(2, synced // 2 + (moment == "after"))
    assert world.run(KILL_AT=str(kill_at), KILL=moment).returncode == -signal.SIGKILL
    resumed = world.flowckpt("resume", "one", "--json")
    assert resumed.returncode == world.code, resumed.stderr
    assert (json.loads(resumed.stdout)["output"], world.ledger) == (output, ledger)
