"""The plan is the resume: random programs are changed between two runs, planned, resumed, and compared with a clean run.

A program is a list of small deterministic steps that pass their outputs on; those that write a file claim it as evidence,
or say that they write it, and others say that they read it. What is changed between the runs: a file edited or deleted, a
constant argument, a version tag, a function's body, a function of another module, a file that is given, and how the resume
is told to go about it. Some runs have ended, some crash at a save, some fail, and some resumes crash too.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import sys
import tempfile
import types
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from crashing import CrashingStore, SimulatedCrash
from hypothesis import HealthCheck, Phase, event, example, given, settings
from hypothesis import strategies as st

from flowckpt import MemoryCheckpointStore, WorkflowEngine, in_sync, step, workflow
from flowckpt.core.dsl import Workflow
from flowckpt.engine.rules.plan import Decision, ResumePlan
from flowckpt.engine.rules.reasons import OnStale
from flowckpt.engine.values.options import RunOptions
from flowckpt.errors import StaleStepError, StepFailedError, StepInDoubtError
from flowckpt.events import StepAdopted, StepRestored, StepStarted
from flowckpt.evidence import file_sha256

KINDS = ("pure", "file", "file", "writes", "reads", "reads", "once", "model", "fails")
WRITERS = ("file", "writes")


@attrs.frozen
class Part:
    """One step of a program."""

    kind: str
    needs: tuple[int, ...]
    name: str
    constant: int = 0
    edition: int = 0
    helper: int = 0
    version: str | None = None
    has_checkpoint: bool = True


@st.composite
def programs(draw: st.DrawFn) -> list[Part]:
    parts: list[Part] = []
    for index in range(draw(st.integers(2, 6))):
        needs = draw(st.sets(st.integers(0, index - 1), max_size=2)) if index else set()
        name = draw(st.sampled_from(["loop", f"step{index}", f"step{index}"]))
        kind, has_checkpoint = draw(st.sampled_from(KINDS)), draw(st.sampled_from([True, True, False]))
        parts.append(Part(kind, tuple(sorted(needs)), name, has_checkpoint=has_checkpoint))
    return parts


CHANGES = ("edit", "delete", "given", "constant", "edition", "helper", "version", "append", "returns")
changes = st.lists(st.tuples(st.sampled_from(CHANGES), st.integers(0, 5)), max_size=2)
choices = st.fixed_dictionaries(
    {},
    optional={
        "on_stale": st.sampled_from(["rerun", "reuse", "fail"]),
        "on_code_change": st.sampled_from(["rerun", "rerun", "reuse", "fail"]),
        "reuse": st.sampled_from(["prefix", "inputs", "inputs"]),
        "from_step": st.integers(0, 5),
        "force": st.just(True),
    },
)

_numbers = itertools.count()


class World:
    """A directory, the code of the steps in its present edition, and what the steps did."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.done: list[str] = []
        self.twice: list[str] = []
        self.broken = ""
        self.returned = "first"
        self.given = "given"
        self.sources: dict[str, Path] = {}
        self.asked_for: set[str] = set()
        """Steps of which somebody said that they are to be done again, or mean something else now."""

    def act(self, path: str, kind: str, said: str) -> str:
        """Do the work of a step; its code calls it with what it makes of its arguments."""
        self.done.append(path)
        if kind == "fails":
            raise ValueError(said)
        if path == self.broken:
            raise OSError("broken")
        if kind == "reads":
            return digest(said, self.sources[path].read_text())
        if kind in (*WRITERS, "once"):
            file = self.file(path)
            if kind == "once" and path not in self.asked_for and file.exists() and file.read_text() == said:
                self.twice.append(path)
            file.write_text(said)
        return said

    def file(self, path: str) -> Path:
        return self.root / path.replace("[", "-").replace("]", "")

    def functions(self, parts: list[Part]) -> dict[int, Any]:
        """Import the steps' functions in their editions: under the same names, with other bodies."""
        source = "import other_editions\n\n" + "".join(
            f"def made{index}(path, constant, *needs):\n"
            f"    said = other_editions.helped{index}(digest({part.edition}, constant, *needs))\n"
            f"    return act(path, {part.kind!r}, said)\n\n"
            for index, part in enumerate(parts)
        )
        helped = "".join(
            f"def helped{index}(said):\n    return digest({part.helper}, said)\n\n" for index, part in enumerate(parts)
        )
        self.imported("other_editions", helped)
        module = self.imported("editions", source)
        return {index: module.__dict__[f"made{index}"] for index in range(len(parts))}

    def imported(self, name: str, source: str) -> types.ModuleType:
        file = self.root.parent / f"{name}{next(_numbers)}.py"
        file.write_text(source)
        module = types.ModuleType(name)
        module.__file__ = str(file)
        module.__dict__.update(act=self.act, digest=digest)
        sys.modules[name] = module
        exec(compile(source, str(file), "exec"), module.__dict__)
        return module

    def workflow(self, parts: list[Part]) -> Workflow[Any, Any]:
        functions = self.functions(parts)
        given = self.root / "given"
        given.write_text(self.given)

        @workflow(name="random")
        def random() -> Generator[Any, Any, list[str]]:
            outputs: list[str] = []
            for index, (part, path) in enumerate(zip(parts, paths_of(parts), strict=True)):
                needs = [outputs[need] for need in part.needs if parts[need].kind != "model"]
                made = step(part.name).python(functions[index], path, part.constant, *needs)
                if part.version is not None:
                    made = made.version(part.version)
                if part.kind == "model":
                    made = made.ephemeral()
                elif part.has_checkpoint:
                    made = made.checkpoint()
                if part.kind == "file":
                    made = made.evidence(file_sha256(self.file(path)))
                if part.kind == "writes":
                    made = made.writes(self.file(path))
                if part.kind == "reads":
                    written = (self.file(paths_of(parts)[need]) for need in part.needs if parts[need].kind in WRITERS)
                    self.sources[path] = next(written, given)
                    made = made.reads(self.sources[path])
                if part.kind == "once":
                    said = digest(part.helper, digest(part.edition, part.constant, *needs))
                    stated = hashlib.sha256(said.encode()).hexdigest()
                    made = made.evidence(file_sha256(self.file(path), stated)).at_most_once().adopt(adopted)
                    adopts[path] = said
                try:
                    outputs.append((yield made))
                except StepFailedError as error:
                    if part.kind != "fails":
                        raise
                    outputs.append(error.error_message)
            told = [output for part, output in zip(parts, outputs, strict=True) if part.kind != "model"]
            return [*told, self.returned]

        adopts: dict[str, str] = {}

        def adopted(path: str, constant: int, *needs: str) -> str:
            return adopts[path]

        return random

    def state(self) -> dict[str, str]:
        return {file.name: file.read_text() for file in sorted(self.root.iterdir())}


def digest(*told: Any) -> str:
    return hashlib.sha256(repr(told).encode()).hexdigest()[:12]


def paths_of(parts: list[Part]) -> list[str]:
    uses: dict[str, int] = {}
    paths = []
    for part in parts:
        number = uses[part.name] = uses.get(part.name, -1) + 1
        paths.append(f"{part.name}[{number}]" if number else part.name)
    return paths


@contextlib.contextmanager
def a_world() -> Iterator[World]:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "artifacts"
        root.mkdir()
        yield World(root)


def changed(parts: list[Part], change: tuple[str, int], world: World) -> list[Part]:
    what, which = change
    if what == "append":  # also to a run that has finished
        return [*parts, Part("pure", (which % len(parts),), f"appended{len(parts)}")]
    if what == "returns":
        world.returned = f"returned {which}"
        return parts
    if what == "given":
        world.given = f"given {which}"
        return parts
    index = which % len(parts)
    part, file = parts[index], world.file(paths_of(parts)[index])
    if what in ("edit", "delete"):
        if file.exists():
            file.write_text("edited") if what == "edit" else file.unlink()
        return parts
    if what == "version":
        world.asked_for.add(paths_of(parts)[index])
    other = {
        "constant": part.constant + 1,
        "edition": part.edition + 1,
        "helper": part.helper + 1,
        "version": f"{part.version}+",
    }[what]
    return [*parts[:index], attrs.evolve(part, **{what: other}), *parts[index + 1 :]]


def reopened(store: MemoryCheckpointStore) -> MemoryCheckpointStore:
    store.runs.owned.clear()  # the process that owned it is gone
    return store


def snapshot(store: MemoryCheckpointStore) -> Any:
    return [(each.checkpoint_id, each.sequence, each.attempt) for each in asyncio.run(store.list_checkpoints("run"))]


def law(
    parts: list[Part],
    crash: int | None,
    is_after: bool,
    broken: int,
    edits: list[tuple[str, int]],
    chosen: dict[str, Any],
    second_crash: int | None,
    is_second_after: bool,
) -> None:
    store = MemoryCheckpointStore()
    with a_world() as world:
        if broken < len(parts) and parts[broken].kind in ("pure", "file", "writes", "reads"):
            world.broken = paths_of(parts)[broken]
        first = CrashingStore(store, crash or 10**9, is_after=is_after)
        with contextlib.suppress(SimulatedCrash):
            WorkflowEngine(first).run_sync(world.workflow(parts), workflow_id="run")
        if asyncio.run(store.load_latest("run")) is None:
            return
        world.broken = ""
        kept = False
        for edit in edits:
            kept |= edit[0] in ("edition", "helper") and parts[edit[1] % len(parts)].kind == "once"
            parts = changed(parts, edit, world)
        if "from_step" in chosen:
            recorded = [result.path for result in asyncio.run(store.load_latest("run")).step_results]
            if recorded:
                chosen = {**chosen, "from_step": recorded[chosen["from_step"] % len(recorded)]}
                world.asked_for.add(chosen["from_step"])
            else:
                chosen = {key: value for key, value in chosen.items() if key != "from_step"}
        options = RunOptions(**chosen)
        same = not any(what in ("constant", "edition", "helper", "given") for what, _ in edits)
        if second_crash is not None:
            is_fine = compare(
                world,
                reopened(store),
                parts,
                options,
                returns_the_same=same,
                crash=second_crash,
                is_after=is_second_after,
            )
            if not is_fine:
                return
            chosen = {key: value for key, value in chosen.items() if key != "from_step"}
            options = RunOptions(**chosen)
        has_ended = compare(world, reopened(store), parts, options, returns_the_same=same)
        assert world.twice == [], "a step that must not be done twice was"
        if has_ended and not kept and "reuse" not in (chosen.get("on_stale"), chosen.get("on_code_change")):
            state = world.state()
            output = asyncio.run(store.load_latest("run")).output
            with a_world() as clean:
                clean.returned, clean.given = world.returned, world.given
                result = WorkflowEngine(MemoryCheckpointStore()).run_sync(clean.workflow(parts), workflow_id="clean")
                assert output == result.output
                assert state == clean.state()


ARGUMENTS: Callable[[Any], Any] = given(
    st.tuples(
        programs(), st.one_of(st.none(), st.integers(1, 12)), st.booleans(), st.integers(0, 12), changes, choices,
        st.one_of(st.none(), st.integers(1, 8)), st.booleans(),
    )
)  # fmt: skip
UNHURRIED: dict[str, Any] = {
    "phases": [Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
    "deadline": None,
    "suppress_health_check": list(HealthCheck),
}


@settings(max_examples=200, **UNHURRIED)
@ARGUMENTS
@example((
    [Part("file", (), "loop"), Part("reads", (0,), "loop")],
    None, False, 1, [("delete", 0)], {"on_stale": "reuse", "reuse": "inputs"}, None, True,
))  # fmt: skip
@example((
    [Part("pure", (), "loop"), Part("pure", (0,), "loop")],
    None, False, 2, [("constant", 0)], {"on_stale": "rerun", "reuse": "inputs"}, 2, False,
))  # fmt: skip
@example((
    [Part("once", (), "loop"), Part("pure", (), "loop"), Part("pure", (0,), "loop")],
    None, False, 0, [("constant", 0)], {"on_stale": "rerun", "force": True, "reuse": "inputs"}, 2, True,
))  # fmt: skip
@example((
    [Part("pure", (), "loop"), Part("pure", (), "loop")],
    None, False, 2, [("version", 1)],
    {"on_code_change": "rerun", "on_stale": "rerun", "from_step": 0, "force": True, "reuse": "inputs"}, 1, True,
))  # fmt: skip
@example((
    [Part("pure", (), "loop"), Part("pure", (), "loop")],
    None, False, 2, [],
    {"on_stale": "rerun", "on_code_change": "rerun", "from_step": 0, "force": True, "reuse": "inputs"}, 2, True,
))  # fmt: skip
@example((
    [Part("pure", (), "loop"), Part("pure", (), "loop")],
    None, False, 2, [],
    {"on_stale": "rerun", "on_code_change": "rerun", "from_step": 0, "force": True, "reuse": "inputs"}, 1, True,
))  # fmt: skip
@example((
    [Part("once", (), "loop"), Part("pure", (), "loop"), Part("pure", (), "loop")],
    None, False, 9, [], {"on_stale": "rerun", "reuse": "inputs", "from_step": 0}, None, False,
))  # fmt: skip
@example((
    [Part("file", (), "loop"), Part("pure", (), "loop"), Part("reads", (0,), "loop"), Part("pure", (), "loop")],
    None, False, 3, [("edit", 0)], {"reuse": "inputs"}, None, False,
))  # fmt: skip
@example((
    [Part("pure", (), "loop"), Part("fails", (0,), "loop"), Part("pure", (), "loop")],
    None, False, 1, [("constant", 0)], {"reuse": "inputs"}, None, False,
))  # fmt: skip
def test_a_resume_does_what_its_plan_said_and_ends_as_a_clean_run(drawn: Any) -> None:
    law(*drawn)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@settings(max_examples=5_000, **UNHURRIED)
@ARGUMENTS
def test_so_do_thousands_of_them(drawn: Any) -> None:
    law(*drawn)


def compare(
    world: World,
    store: MemoryCheckpointStore,
    parts: list[Part],
    options: RunOptions,
    *,
    returns_the_same: bool,
    crash: int | None = None,
    is_after: bool = False,
) -> bool:
    """Plan and resume, and compare the two; return whether the resume continued."""
    random = world.workflow(parts)
    plan = in_sync(WorkflowEngine(store)).plan(random, workflow_id="run", options=options)
    before = snapshot(store)
    was_completed = asyncio.run(store.load_latest("run")).status == "completed"
    world.done.clear()
    events: list[Any] = []
    crashing = CrashingStore(store, crash or 10**9, is_after=is_after)
    engine = WorkflowEngine(crashing)
    session = engine.prepare_resume(random, "run", options, {})
    if plan.stops:
        event("stops")
        with pytest.raises((StaleStepError, StepInDoubtError)):
            engine.drive_sync(session, on_event=events.append)
        assert snapshot(store) == before
        assert [path for path in world.done if not is_model(path, parts)] == []
        return False
    try:
        result = engine.drive_sync(session, on_event=events.append)
    except SimulatedCrash:
        event("crashed in the resume")
        check(plan, events, parts, is_whole=False, returns_the_same=False)
        reopened(store)
        return True
    if isinstance(result.error, StaleStepError):  # what a step returned anew moved the arguments of one behind it
        stopped = plan.step(result.error.path)
        assert stopped is not None and stopped.may_stop, (plan, result.error)
        assert not returns_the_same
        return False
    if options.on_stale is OnStale.REUSE and "StepFilesError" in str(result.error):
        event("reads a file that was deleted and not written again")
        return False
    assert result.status == "completed", result.error
    if any(isinstance(each, StepStarted) for each in events):
        event("resumed")
    check(plan, events, parts, is_whole=True, returns_the_same=returns_the_same)
    if was_completed:
        event("resumed after its end")
        assert plan.is_nothing_to_do is (snapshot(store) == before), plan
    return True


def is_model(path: str, parts: list[Part]) -> bool:
    return dict(zip(paths_of(parts), parts, strict=True))[path].kind == "model"


def check(plan: ResumePlan, events: list[Any], parts: list[Part], *, is_whole: bool, returns_the_same: bool) -> None:
    recorded = {path for path in paths_of(parts) if not is_model(path, parts)}
    restored = {each.path for each in events if isinstance(each, StepRestored)}
    started = {each.path for each in events if isinstance(each, StepStarted)} & recorded
    adopted = {each.path for each in events if isinstance(each, StepAdopted)}
    if not plan.is_nothing_to_do or restored or started:
        of = {kind: {each.path for each in plan.steps if each.decision is kind} for kind in Decision}
        sure = {each.path for each in plan.steps if each.decision is Decision.REUSE and not each.assumes}
        assert not of[Decision.ORPHANED], plan
        assert adopted <= of[Decision.IN_DOUBT] | (recorded - {each.path for each in plan.steps}), plan
        unseen = of[Decision.IN_DOUBT] if plan.ends_at else set()
        runs = of[Decision.RERUN] | of[Decision.NEW] | of[Decision.INTERRUPTED] | of[Decision.IN_DOUBT]
        assert not runs & restored - unseen, (plan, restored)
        assert not started & sure, (plan, started)
        assert restored <= of[Decision.REUSE] | unseen, (plan, restored)
        if is_whole:
            assert sure <= restored, (plan, restored)
            assert runs - unseen <= started, (plan, started)
            # A plan that does not know what a step will return has not seen the steps behind it, nor their versions.
            is_seen = not plan.ends_at or all(part.version is None for part in parts)
            if returns_the_same and is_seen:
                assert of[Decision.REUSE] <= restored, (plan, restored)
