"""A durable step of other libraries that run without a server, each on its SQLite storage, in the same session.

Each library is installed in an environment of its own; one that cannot be installed or run is skipped, and named.
All of them write one step at a time, and each acknowledges a step before the next one starts.
Each library runs with its default settings, so they differ in how much a power cut may lose.
"""

from __future__ import annotations

import functools
import statistics
import subprocess
import sys
import venv
from collections.abc import Mapping
from itertools import count as numbers
from pathlib import Path

import attrs

from benchmarks.figure import Figure

OURS = """
import sys, time
from flowckpt import WorkflowEngine, open_store, step, workflow
def work(number):
    return {"i": number, "ok": True}
@workflow("peer")
def pipeline(count: int):
    for number in range(count):
        yield step("work").python(work, number).checkpoint()
count, path = int(sys.argv[1]), sys.argv[2]
engine = WorkflowEngine(open_store(path))
engine.run_sync(pipeline, count=1).unwrap()
began = time.perf_counter()
engine.run_sync(pipeline, count=count).unwrap()
print((time.perf_counter() - began) / count)
"""

BURR = """
import sys, time
from burr.core import ApplicationBuilder, action, expr
from burr.core.persistence import SQLitePersister
count, path = int(sys.argv[1]), sys.argv[2]
@action(reads=["i"], writes=["i", "value"])
def work(state):
    return state.update(i=state["i"] + 1, value={"i": state["i"], "ok": True})
@action(reads=[], writes=[])
def done(state):
    return state
store = SQLitePersister(db_path=path)
store.initialize()
pipeline = (
    ApplicationBuilder()
    .with_actions(work, done)
    .with_transitions(("work", "work", expr(f"i < {count}")), ("work", "done"))
    .with_state(i=0, value=None)
    .with_entrypoint("work")
    .with_identifiers(app_id="run")
    .with_state_persister(store)
    .build()
)
began = time.perf_counter()
pipeline.run(halt_after=["done"])
print((time.perf_counter() - began) / count)
"""

LANGGRAPH = """
import sys, time
from typing import TypedDict
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph
count, path = int(sys.argv[1]), sys.argv[2]
class State(TypedDict):
    i: int
    value: dict
def work(state):
    return {"i": state["i"] + 1, "value": {"i": state["i"], "ok": True}}
graph = StateGraph(State)
graph.add_node("work", work)
graph.add_edge(START, "work")
graph.add_conditional_edges("work", lambda state: "work" if state["i"] < count else END)
with SqliteSaver.from_conn_string(path) as saver:
    pipeline = graph.compile(checkpointer=saver)
    settings = {"configurable": {"thread_id": "run"}, "recursion_limit": count + 10}
    began = time.perf_counter()
    pipeline.invoke({"i": 0, "value": {}}, settings, durability="sync")
    print((time.perf_counter() - began) / count)
"""

DBOS = """
import sys, time
from dbos import DBOS
count, path = int(sys.argv[1]), sys.argv[2]
DBOS(config={"name": "peer", "system_database_url": f"sqlite:///{path}", "run_admin_server": False, "log_level": "ERROR"})
@DBOS.step()
def work(number):
    return {"i": number, "ok": True}
@DBOS.workflow()
def pipeline():
    for number in range(count):
        work(number)
DBOS.launch()
began = time.perf_counter()
pipeline()
print((time.perf_counter() - began) / count)
DBOS.destroy()
"""


@attrs.frozen
class Peer:
    """A library: its name, its requirements, and a program that prints the seconds of a step."""

    name: str
    packages: tuple[str, ...]
    program: str


PEERS = (
    Peer("Burr", ("apache-burr",), BURR),
    Peer("LangGraph", ("langgraph", "langgraph-checkpoint-sqlite"), LANGGRAPH),
    Peer("DBOS", ("dbos",), DBOS),
)
_fresh = numbers()


def durable_steps(directory: Path, count: int, rounds: int) -> dict[str, float]:
    """Return the median seconds of a durable step of flowckpt, on files and on SQLite, and of each peer, by name.

    Args:
        directory: the directory for environments and databases.
        count: the number of steps in a run.
        rounds: how often each library is measured, all of them in turn.
    """
    sides = {
        "flowckpt on files": functools.partial(_seconds, sys.executable, OURS, directory, count, "file:{}"),
        "flowckpt on SQLite": functools.partial(_seconds, sys.executable, OURS, directory, count, "sqlite:{}.db"),
    }
    for peer in PEERS:
        try:
            side = functools.partial(
                _seconds, _create_environment(directory, peer), peer.program, directory, count, "{}.db"
            )
            side()
        except subprocess.CalledProcessError as error:
            print(f"  {peer.name} is skipped: {error.stderr.strip()[-300:]}", file=sys.stderr, flush=True)
            continue
        sides[peer.name] = side
    measured: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            measured[name].append(side())
    return {name: statistics.median(times) for name, times in measured.items()}


def compare(times: Mapping[str, float]) -> list[Figure]:
    """Compare each of our times with each of the peers'."""
    return [
        Figure(
            f"{mine}: a durable step / {other}", times[mine] / times[other], 1, detail=_format_times(times, mine, other)
        )
        for other in times
        if not other.startswith("flowckpt")
        for mine in times
        if mine.startswith("flowckpt")
    ]


def _format_times(times: Mapping[str, float], mine: str, other: str) -> str:
    return f"{times[mine] * 1e3:.2f} ms; {other} {times[other] * 1e3:.2f} ms"


def _create_environment(directory: Path, peer: Peer) -> str:
    """Return the Python of an environment with a peer."""
    place = directory / f"peer-{peer.name}"
    venv.create(place, with_pip=True)
    python = str(place / "bin" / "python")
    _run_command([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *peer.packages])
    return python


def _seconds(python: str, program: str, directory: Path, count: int, spec: str) -> float:
    path = spec.format(directory / f"peer-{next(_fresh)}")
    return float(_run_command([python, "-c", program, str(count), path]).splitlines()[-1])


def _run_command(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
