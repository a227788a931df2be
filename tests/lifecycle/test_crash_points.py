"""A process that dies anywhere in a rollback or a fork: done again, it comes out the same, and nothing is forgotten."""

from __future__ import annotations

import asyncio
import os
import subprocess
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from workshop import Killed, latest, paths, ran, shop, superseded

from flowckpt import FileCheckpointStore, RunOptions, WorkflowEngine, in_sync
from flowckpt.core.system.filesystem import PosixFileSystem
from flowckpt.errors import StepInDoubtError
from tests.forked import Started

Reopen = Callable[[], Any]


def dying(store: Any, *, is_after: bool) -> Any:
    plain = store.save

    async def save(workflow_id: str, data: Any) -> None:
        if is_after:
            await plain(workflow_id, data)
        raise Killed

    async def release(workflow_id: str, *, token: str = "") -> None:
        """No process is there to give it up."""

    store.save, store.release = save, release
    return store


def revived(store: Any) -> None:
    del store.save, store.release


@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
def test_a_rollback_that_dies_at_its_save(reopen: Reopen, is_after: bool) -> None:
    WorkflowEngine(reopen()).run_sync(shop, workflow_id="run")
    before = latest(reopen())
    store = dying(reopen(), is_after=is_after)
    with pytest.raises(Killed):
        in_sync(WorkflowEngine(store)).rollback("run", "rent")
    revived(store)
    if not is_after:
        assert latest(reopen()) == before
    done = in_sync(WorkflowEngine(reopen())).rollback("run", "rent")
    assert done.is_new is not is_after
    assert paths(reopen()) == ["fetch", "rent"]
    assert superseded(reopen()) == ["pay"]
    assert asyncio.run(reopen().load_attempt("run", 1)).output == "3 names, paid 7"


@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
def test_a_fork_that_dies_at_its_save(reopen: Reopen, is_after: bool) -> None:
    WorkflowEngine(reopen()).run_sync(shop, workflow_id="run")
    source = latest(reopen())
    how = {"new_id": "new", "outputs": {"clean": ["a"]}, "workflow": shop}
    store = dying(reopen(), is_after=is_after)
    with pytest.raises(Killed):
        in_sync(WorkflowEngine(store)).fork("run", **how)
    revived(store)
    assert (latest(reopen(), "new") is not None) is is_after
    made = in_sync(WorkflowEngine(reopen())).fork("run", **how)
    assert made.is_new is not is_after
    assert paths(reopen(), "new") == ["fetch", "rent", "clean"]
    assert superseded(reopen(), "new") == ["pay"]
    assert latest(reopen(), "run") == source
    ran.clear()
    result = WorkflowEngine(reopen()).resume_sync(shop, workflow_id="new", options=RunOptions(force=True))
    assert result.output == "1 names, paid 7"


class CountedFileSystem(PosixFileSystem):
    """Dies before or behind its n-th change of the disk."""

    CHANGES = (
        *("write", "sync", "sync_data", "create", "link", "link_into", "rename", "unlink"),
        *("make_directory", "set_writable"),
    )

    def __init__(self) -> None:
        self.left = 10**9
        self.made = 0
        self.is_dead = False
        for name in self.CHANGES:
            if (call := getattr(self, name, None)) is not None:
                setattr(self, name, self._dying(call))

    def _dying(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def changed(*arguments: Any) -> Any:
            if self.is_dead:
                raise Killed
            self.made += 1
            if self.made == self.left:
                self.is_dead = True
                raise Killed
            return call(*arguments)

        return changed


@pytest.mark.parametrize("act", ["rollback", "fork", "rerun"])
def test_it_may_die_at_every_change_of_the_disk(tmp_path: Path, act: str) -> None:
    """After each, a payment is still known, and doing it again comes out the same."""

    def acted(engine: WorkflowEngine) -> None:
        if act == "rollback":
            in_sync(engine).rollback("run", "fetch")
        elif act == "fork":
            in_sync(engine).fork("run", new_id="new", from_step="rent")
        else:
            engine.resume_sync(shop, workflow_id="run", options=RunOptions(from_step="rent"))

    run = "new" if act == "fork" else "run"
    number = 0
    while True:
        number += 1
        ran.clear()
        place = tmp_path / f"store-{number}"
        WorkflowEngine(FileCheckpointStore(place)).run_sync(shop, workflow_id="run")
        source = latest(FileCheckpointStore(place))
        calls = CountedFileSystem()
        store = FileCheckpointStore(place, filesystem=calls)
        calls.left = number
        is_done = False
        try:
            acted(WorkflowEngine(store))
            is_done = True
        except (Killed, StepInDoubtError):
            pass
        is_done = is_done or not calls.is_dead
        for owned in store.runs.owned.values():
            owned.writer._fence = None
            os.close(owned._lock)  # the kernel does, when a process dies
        store.runs.owned.clear()
        found = latest(FileCheckpointStore(place), run)
        if act == "fork":
            assert latest(FileCheckpointStore(place)) == source
            assert found is None or [each.path for each in found.step_results] == ["fetch"]
        if act == "rollback":
            assert found == source or [each.path for each in found.step_results] == ["fetch"]
            listed = asyncio.run(FileCheckpointStore(place).list_runs())
            assert (listed[0].status, listed[0].steps) == (found.status, len(found.step_results))
        if found is not None:
            known = {each.path for each in found.step_results} | {
                each["path"] for each in found.metadata.get("superseded", ())
            }
            assert "pay" in known | set(found.in_flight), f"the payment is forgotten after change {number}"
        if act == "rerun":
            if is_done:
                break
            continue
        acted(WorkflowEngine(FileCheckpointStore(place)))
        assert paths(FileCheckpointStore(place), run) == ["fetch"]
        assert "pay" in superseded(FileCheckpointStore(place), run)
        assert recorded(place, 1) == recorded_of(source)
        if is_done:
            break
    assert number > 8


def recorded(place: Path, attempt: int) -> Any:
    return recorded_of(asyncio.run(FileCheckpointStore(place).load_attempt("run", attempt)))


def recorded_of(data: Any) -> Any:
    return data.output, [(each.path, repr(each.output)) for each in data.step_results]


PROGRAM = """
    import os, sys
    from flowckpt.stores.file.run_writer import SegmentWriter

    sys.path.insert(0, {here!r})
    plain, left = SegmentWriter.append, [int(sys.argv[1])]

    def append(self, body):
        left[0] -= 1
        if left[0] == 0 and sys.argv[2] == "before":
            os._exit(9)
        plain(self, body)
        if left[0] == 0:
            os._exit(9)

    SegmentWriter.append = append
    from flowckpt.cli import main
    main(sys.argv[3:])
"""


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    ("arguments", "run"),
    [(("rollback", "run", "rent"), "run"), (("fork", "run", "--id", "new", "--set", 'clean=["a"]'), "new")],
    ids=["rollback", "fork"],
)
def test_the_real_command_killed_at_every_append(
    tmp_path: Path, when: str, arguments: tuple[str, ...], run: str
) -> None:
    here = Path(__file__).parent
    (tmp_path / "program.py").write_text(textwrap.dedent(PROGRAM).format(here=str(here)))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(here.parents[1]), str(here)])}

    def command(*words: str, append: int = 10**9) -> int:
        program, pipe = [tmp_path / "program.py", append, when, *words], subprocess.PIPE
        process = Started(program, cwd=tmp_path, env=environment, stdout=pipe, stderr=pipe)
        process.communicate(timeout=120)
        return process.returncode

    assert command("run", "workshop:shop", "--id", "run") == 0
    store = FileCheckpointStore(tmp_path / ".flowckpt")
    source = latest(store, "run")
    is_fork, number = run != "run", 1
    while command(*arguments, append=number) == 9:
        # What dies on the way has forgotten the payment nowhere: not in the run, and not in a fork that is there already.
        assert "pay" in {*paths(store, "run"), *superseded(store, "run")}
        if is_fork:
            assert recorded_of(latest(store, "run")) == recorded_of(source)
            assert latest(store, run) is None or "pay" in superseded(store, run)
        number += 1
        assert number < 10
    assert number > 1
    assert paths(store, run) == (["fetch", "rent", "clean"] if is_fork else ["fetch", "rent"])
    assert superseded(store, run) == ["pay"]
    assert recorded_of(asyncio.run(store.load_attempt("run", 1))) == recorded_of(source)
    assert command("resume", run) == 15
    assert command("resume", run, "--force") == 0
