"""With `.reads()` and `.writes()` a run is a build: after random edits, a resume leaves the files of a clean run.

A program is a random graph of files: sources, and steps that write a digest of what they read. Between two resumes,
sources are edited, outputs are edited or deleted, and the program changes: constants, code, what a step reads, a map
gains a member, a new step stands at the end. Some resumes crash at a save. The judge is the final program in an empty
directory; and what each plan said is compared with what its resume did.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

import attrs
from crashing import CrashingStore, SimulatedCrash
from hypothesis import HealthCheck, event, example, given, settings
from hypothesis import strategies as st

from flowckpt import MemoryCheckpointStore, RunOptions, WorkflowEngine, in_sync, step, workflow
from flowckpt.engine.rules.plan import Decision
from flowckpt.events import StepRestored, StepStarted
from flowckpt.evidence import EvidenceVerifier

SOURCES = ("s0", "s1", "s2")


@attrs.frozen
class Rule:
    """One step: what it reads, by number among the sources and the outputs of the steps before it."""

    needs: tuple[int, ...]
    width: int = 0
    """How many members a map has; 0 for a single step."""
    constant: int = 0
    edition: int = 0
    is_narrow: bool = False
    """Whether its output depends on little of what it reads, so that it often stays the same."""

    def outputs(self, index: int) -> list[str]:
        return [f"o{index}.{member}" for member in range(self.width)] if self.width else [f"o{index}"]


def inputs(rules: list[Rule], index: int) -> list[str]:
    known = [*SOURCES, *(file for each, rule in enumerate(rules[:index]) for file in rule.outputs(each))]
    return list(dict.fromkeys(known[need % len(known)] for need in rules[index].needs))


a_rule = st.builds(
    Rule,
    st.lists(st.integers(0, 9), min_size=1, max_size=3).map(tuple),
    width=st.sampled_from([0, 0, 0, 2, 3]),
    is_narrow=st.booleans(),
)
graphs = st.lists(a_rule, min_size=1, max_size=5)
EDITS = ("source", "source", "delete", "overwrite", "constant", "edition", "needs", "append", "widen")
edits = st.lists(st.tuples(st.sampled_from(EDITS), st.integers(0, 9), a_rule), min_size=1, max_size=3)
rounds = st.lists(st.tuples(edits, st.sampled_from(["inputs", "inputs", "prefix"]), st.integers(0, 9)), max_size=3)
_numbers = itertools.count()


class World:
    """A directory with sources, and the programs that build in it."""

    def __init__(self, folder: str, sources: dict[str, str]) -> None:
        self.root = Path(folder) / "files"
        self.root.mkdir()
        self.done: list[str] = []
        self.width = 1
        """How many members of a map run in parallel: one where the process is to die, as its threads would live on."""
        for name, text in sources.items():
            (self.root / name).write_text(text)

    def act(self, output: str, constant: int, edition: int, is_narrow: bool, needs: list[str]) -> str:
        self.done.append(output)
        read = [(self.root / need).read_text() for need in needs]
        told = [text[:1] for text in read] if is_narrow else read
        (self.root / output).write_text(hashlib.sha256(repr((constant, edition, told)).encode()).hexdigest()[:8])
        return output

    def program(self, rules: list[Rule]) -> Any:
        source = "".join(
            f"def made{index}(output, constant, needs):\n    return act(output, constant, {rule.edition}, "
            f"{rule.is_narrow}, needs)\n\n"
            for index, rule in enumerate(rules)
        )
        file = self.root.parent / f"edition{next(_numbers)}.py"
        file.write_text(source)
        module = types.ModuleType("file_editions")
        module.__file__ = str(file)
        module.__dict__["act"] = self.act
        sys.modules["file_editions"] = module
        exec(compile(source, str(file), "exec"), module.__dict__)

        @workflow(name="build")
        def build() -> Any:
            for index, rule in enumerate(rules):
                function, needs = module.__dict__[f"made{index}"], inputs(rules, index)
                name = step(f"step{index}").reads(*needs).writes(lambda output, *_args, **_kwargs: output).checkpoint()
                outputs = rule.outputs(index)
                if rule.width:
                    yield name.map(function, outputs, constant=rule.constant, needs=needs, concurrency=self.width)
                else:
                    yield name.python(function, outputs[0], rule.constant, needs)

        return build

    def engine(self, store: Any) -> WorkflowEngine:
        return WorkflowEngine(store, verifier=EvidenceVerifier(self.root))

    def files(self, names: set[str]) -> dict[str, str]:
        return {name: (self.root / name).read_text() for name in sorted(names)}


def edited(rules: list[Rule], edit: tuple[str, int, Rule], world: World) -> list[Rule]:
    what, which, new = edit
    index = which % len(rules)
    rule = rules[index]
    if what == "source":
        (world.root / SOURCES[which % 3]).write_text(f"{which}{'x' * new.needs[0]}")
    elif what in ("delete", "overwrite"):
        for output in rule.outputs(index)[: 1 + which % 2]:
            if (world.root / output).exists():
                (world.root / output).unlink() if what == "delete" else (world.root / output).write_text(f"{which}!")
    elif what == "append":
        return [*rules, new]
    elif what == "widen":
        if not rule.width:
            return rules
        rule = attrs.evolve(rule, width=rule.width + 1)
    elif what == "needs":
        rule = attrs.evolve(rule, needs=new.needs)
    else:
        rule = attrs.evolve(rule, **{what: getattr(rule, what) + 1})
    return [*rules[:index], rule, *rules[index + 1 :]]


TOUCH = Rule((0,))
NEW_WRITER = [([("delete", 0, TOUCH), ("source", 1, TOUCH)], "inputs", 1), ([], "inputs", 0)]
"""A step writes its file again, which another one reads, after a resume that dropped its result and was killed."""


@example([TOUCH, TOUCH, Rule((8,))], NEW_WRITER, 0)
@example([Rule((0,), width=2), TOUCH, Rule((8,))], NEW_WRITER, 0)
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(graphs, rounds, st.integers(0, 9))
def test_after_random_edits_the_files_are_those_of_a_clean_build(
    rules: list[Rule], edits_and_resumes: list[Any], first_crash: int
) -> None:
    store = MemoryCheckpointStore()
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as empty:
        world = World(folder, dict.fromkeys(SOURCES, "a"))
        with contextlib.suppress(SimulatedCrash):
            crashing = CrashingStore(store, first_crash or 10**9, is_after=bool(first_crash % 2))
            world.engine(crashing).run_sync(world.program(rules), workflow_id="run")
        *early, (last_edits, last_reuse, _) = edits_and_resumes or [([], "inputs", 0)]
        for changes, reuse, crash in [*early, (last_edits, last_reuse, 0)]:  # one resume mends everything
            for change in changes:
                rules = edited(rules, change, world)
            resume(world, store, rules, reuse, crash)
        clean = World(empty, world.files(set(SOURCES)))
        clean.engine(MemoryCheckpointStore()).run_sync(clean.program(rules), workflow_id="clean")
        built = {output for index, rule in enumerate(rules) for output in rule.outputs(index)}
        assert world.files(built | set(SOURCES)) == clean.files(built | set(SOURCES))
        world.done.clear()
        world.engine(reopened(store)).resume_sync(world.program(rules), workflow_id="run", options=options("prefix"))
        assert world.done == []


def options(reuse: str) -> RunOptions:
    return RunOptions(reuse=reuse, on_code_change="rerun")  # type: ignore[arg-type]


def reopened(store: MemoryCheckpointStore) -> MemoryCheckpointStore:
    store.runs.owned.clear()  # the process that owned it is gone
    return store


def resume(world: World, store: MemoryCheckpointStore, rules: list[Rule], reuse: str, crash: int) -> None:
    """Plan and resume, and compare the two."""
    if asyncio.run(reopened(store).load_latest("run")) is None:
        world.engine(store).run_sync(world.program(rules), workflow_id="run")
        return
    world.width = 1 if crash else 3
    build = world.program(rules)
    plan = in_sync(world.engine(store)).plan(build, workflow_id="run", options=options(reuse))
    assert not plan.stops, plan.stops
    events: list[Any] = []
    engine = world.engine(CrashingStore(store, crash or 10**9, is_after=bool(crash % 2)))
    try:
        result = engine.drive_sync(engine.prepare_resume(build, "run", options(reuse), {}), on_event=events.append)
    except SimulatedCrash:
        event("crashed")
        return
    assert result.status == "completed", result.error
    started = {each.path for each in events if isinstance(each, StepStarted)}
    restored = {each.path for each in events if isinstance(each, StepRestored)}
    runs = {each.path for each in plan.steps if each.decision in (Decision.RERUN, Decision.NEW)}
    sure = {each.path for each in plan.steps if each.decision is Decision.REUSE and not each.assumes}
    if started:
        event("something ran")
        assert not runs & restored, plan
        assert not sure & started, plan
    else:
        assert plan.is_nothing_to_do, plan
