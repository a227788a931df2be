"""One random program, run against every store at once: all answer alike."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import attrs
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from obstore.store import MemoryStore

from flowckpt.checkpoint import Reason
from flowckpt.errors import FlowckptError
from flowckpt.stores import (
    FileCheckpointStore,
    MemoryCheckpointStore,
    ObjectCheckpointStore,
    SqliteCheckpointStore,
)
from flowckpt.testing.contract import EXACT, checkpoint, results
from tests.crash.workload import done

RUNS = st.sampled_from(["a", "A", "../x"])
NAMES = st.sampled_from(["one", "two", "three"])
VALUES = [*(value for value in EXACT if value == value), *["x" * 70_000] * 4]
OUTPUTS = st.integers(0, len(VALUES) - 1)
LARGE = {"x": "y" * 70_000}


class Agreement(RuleBasedStateMachine):
    """Each rule asks all stores the same; what they return, or the class of what they raise, must be equal."""

    def __init__(self):
        super().__init__()
        self.place = Path(tempfile.mkdtemp())
        self.stores = {
            "memory": MemoryCheckpointStore(),
            "file": FileCheckpointStore(self.place / "store"),
            "sqlite": SqliteCheckpointStore(self.place / "store.db"),
            "objects": ObjectCheckpointStore(MemoryStore()),
        }
        self.histories = {}
        self.leases = {}

    def teardown(self):
        for name, store in self.stores.items():
            if name != "memory":
                store.close()
        shutil.rmtree(self.place)

    def ask(self, question):
        answers = {}
        for name, store in self.stores.items():
            try:
                answers[name] = done(question(store))
            except FlowckptError as error:
                answers[name] = type(error)
        first = answers["memory"]
        for name, answer in answers.items():
            assert answer == first, f"{name} answers {answer!r}, memory {first!r}"
        return None if isinstance(first, type) else first

    async def seen(self, store, run):
        """All that can be asked of a run, but sizes of bytes."""
        references = [attrs.evolve(ref, size=0) for ref in await store.list_checkpoints(run)]
        loaded = [await store.load(run, ref.checkpoint_id) for ref in references]
        latest = await store.load_latest(run)
        owner = await store.owner(run)
        return references, loaded, latest, owner is not None

    async def runs(self, store):
        return sorted(
            (run.workflow_id, run.workflow_name, run.status, run.attempt, run.steps, run.updated_at, run.tags)
            for run in await store.list_runs()
        )

    @initialize(run=RUNS)
    def begin(self, run):
        self.acquire(run, steal=False)

    @rule(run=RUNS, steal=st.booleans())
    def acquire(self, run, steal):
        async def question(store):
            lease = await store.acquire(run, steal=steal)
            return lease.attempt, lease.latest, lease.last_sequence

        lease = self.ask(question)
        if lease:
            self.leases[run] = lease[0]
            self.histories[run] = list(lease[1].step_results) if lease[1] else []

    @rule(
        run=RUNS,
        name=NAMES,
        step=st.sampled_from([1, 1, 1, 2, 0, -1]),
        attempt=st.sampled_from([0, 0, 0, 0, 0, 0, -1, 1, 2]),
        outputs=st.lists(OUTPUTS, max_size=3),
        back=st.sampled_from([0, 0, 0, 1, 2, 9]),
        fields=st.fixed_dictionaries(
            {"inputs": st.sampled_from("abc")},
            optional={
                "snapshot": OUTPUTS,
                "output": OUTPUTS,
                "reason": st.sampled_from(Reason),
                "extra": st.just({"later": [1]}),
            },
        ),
        broken=st.sampled_from([False] * 9 + [True]),
        tag=st.sampled_from("ab"),
    )
    def save(self, run, name, step, attempt, outputs, back, fields, broken, tag):
        history = self.histories.get(run, [])
        history = history[: max(0, len(history) - back)]
        for place in {"snapshot", "output"} & fields.keys():
            fields[place] = VALUES[fields[place]]
        fields["inputs"] = {"a": {}, "b": {"x": (1,)}, "c": LARGE}[fields["inputs"]]
        outputs = [VALUES[index] for index in outputs]
        history = [*history, *results(*outputs, *([object()] if broken else []), first=len(history) + 1)]
        number = self.leases.get(run, 1) + attempt

        async def question(store):
            references = await store.list_checkpoints(run)
            sequence = max((ref.sequence for ref in references), default=0) + step
            data = checkpoint(
                sequence, list(history), checkpoint_id=name, attempt=number, metadata={"tags": {"t": tag}}, **fields
            )
            await store.save(run, data)
            return True

        if self.ask(question):
            self.histories[run] = history
            self.leases[run] = number

    @rule(run=RUNS)
    def release(self, run):
        self.ask(lambda store: store.release(run))

    @rule(run=RUNS, name=NAMES)
    def delete(self, run, name):
        self.ask(lambda store: store.delete_checkpoint(run, name))

    @rule(run=RUNS, name=NAMES)
    def load(self, run, name):
        self.ask(lambda store: store.load(run, name))

    @rule(run=RUNS)
    def clear(self, run):
        self.ask(lambda store: store.clear(run))
        self.leases.pop(run, None)
        self.histories.pop(run, None)

    @invariant()
    def all_show_the_same(self):
        for run in ("a", "A", "../x"):
            self.ask(lambda store, run=run: self.seen(store, run))
        self.ask(self.runs)


def short(machine, examples, steps):
    """Return the tests of a machine with the same programs each time."""
    case = type(machine.__name__, (machine.TestCase,), {})
    case.settings = settings(_QUIET, max_examples=examples, stateful_step_count=steps, derandomize=True)
    return case


def long(machine, examples):
    """Return the tests of a machine with many programs, others each time."""
    case = type(machine.__name__, (machine.TestCase,), {})
    case.settings = settings(_QUIET, max_examples=examples, stateful_step_count=50)
    return pytest.mark.soak(pytest.mark.timeout(3_600)(case))


_QUIET = settings(deadline=None, suppress_health_check=list(HealthCheck), database=None)
TestAgreement = short(Agreement, examples=40, steps=25)
TestAgreementForLong = long(Agreement, examples=2_000)
