"""Is a workflow deterministic? It is run once, then driven again from its record, and what differs is reported.

    run it, in memory ──► drive a fresh generator with the recorded outputs ──► and another one, in another process

No step runs twice, but those that are `.ephemeral()`, which run at each replay anyway. In the other process text is hashed
otherwise (PYTHONHASHSEED), so what depends on the order of a set shows there. And once the body reads other environment
variables, directories and times than there are, so what depends on them shows.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs

from flowckpt.core import codec
from flowckpt.core.codec.checkpoints import export_text, read_export
from flowckpt.core.codec.results import plain_tree
from flowckpt.core.dsl import Workflow
from flowckpt.core.records import CheckpointData, Status
from flowckpt.engine.dry.other_world import other_world
from flowckpt.engine.dry.second_drive import Difference, End, SecondDrive
from flowckpt.engine.engine import WorkflowEngine, in_own_loop
from flowckpt.engine.values.failures import recorded_error
from flowckpt.engine.values.inputs import bind_inputs
from flowckpt.engine.values.options import RunOptions
from flowckpt.engine.values.target import describe_target, load_target
from flowckpt.errors import FlowckptError
from flowckpt.events import Event
from flowckpt.stores.memory import MemoryCheckpointStore

RUN = "determinism-check"
_MODULE = "flowckpt.engine.determinism"


@attrs.frozen
class DeterminismReport:
    """The findings of `check_determinism`.

    Each difference has `kind`, `path`, `recorded`, `now`, `where` (`file:line`) and `place` (`this process`, `another
    process` or `another environment`).

    Attributes:
        workflow_name: the workflow.
        status: how the run ended.
        steps: the number of recorded steps compared.
        differences: what differed, in the order found.
        is_other_process_checked: whether a second process was compared, too.
        note: why not, or other remarks; may be empty.
    """

    workflow_name: str
    status: Status
    steps: int
    differences: tuple[Difference, ...]
    is_other_process_checked: bool = False
    note: str = ""

    @property
    def is_deterministic(self) -> bool:
        """Whether no difference was found."""
        return not self.differences


def check_determinism(workflow: Workflow[..., Any], /, **inputs: Any) -> DeterminismReport:
    """Run a workflow once in memory, drive it again from its record, and report what differs.

    The steps really run, so choose inputs that do no harm.

    Args:
        workflow: the workflow.
        **inputs: its inputs.

    Raises:
        InputError: an input is unknown or missing.
        EncodingError: an input cannot be recorded.
        RunInterrupted: a signal stopped the run.
    """
    return determinism_of(workflow, inputs)


def determinism_of(
    workflow: Workflow[..., Any],
    inputs: Mapping[str, Any],
    *,
    target: Mapping[str, str] | None = None,
    has_other_process: bool = True,
    on_event: Callable[[Event], None] | None = None,
) -> DeterminismReport:
    """Check a workflow; see `check_determinism`.

    Args:
        workflow: the workflow.
        inputs: its inputs by name.
        target: where another process finds it; worked out where not given.
        has_other_process: whether to drive it in another process, too.
        on_event: told the events of the run.
    """
    store = MemoryCheckpointStore()
    options = RunOptions(target=target, rolls_back=False)
    session = WorkflowEngine(store).prepare(workflow, RUN, options, dict(inputs))
    session.ends_with_generation = True  # a loop without an end is checked for one generation
    result = WorkflowEngine.drive_sync(session, on_event=on_event)
    latest = in_own_loop(store.load_latest(RUN))
    assert latest is not None, "a run that has ended has a checkpoint"
    found, steps = driven_again(workflow, inputs, latest, place="this process")
    if not found:  # else the same differences would show once more
        with other_world():
            found, _ = driven_again(workflow, inputs, latest, place="another environment")
    note, is_checked = "", False
    if result.status is Status.FAILED and result.error is not None:
        error = recorded_error(result.error)
        note = f"the run failed, so it is compared up to there: {error.type}: {error.message}"
    if has_other_process:
        others, said = driven_in_other_process(target or describe_target(workflow), inputs, workflow, latest)
        is_checked = others is not None
        known = {(each.kind, each.path) for each in found}
        found += [each for each in others or () if (each.kind, each.path) not in known]
        note = "; ".join(each for each in (note, said) if each)
    return DeterminismReport(workflow.name, result.status, steps, tuple(found), is_checked, note)


def driven_again(
    workflow: Workflow[Any, Any], inputs: Mapping[str, Any], latest: CheckpointData, *, place: str
) -> tuple[list[Difference], int]:
    """Drive a fresh generator from a record; return what differs, and how many steps were compared.

    Args:
        workflow: the workflow.
        inputs: its inputs by name.
        latest: the record.
        place: where this happens, for the differences.
    """

    async def drive() -> tuple[list[Difference], int]:
        bound = bind_inputs(workflow, inputs)
        second = SecondDrive(place, bound.known_secrets())
        end = await second.driven(workflow, bound.values(workflow), latest.step_results)
        if end is not None and latest.status in (Status.COMPLETED, Status.FAILED):
            second.compare_end("", _recorded_end(latest), end, workflow.where)
        return second.differences, second.compared

    return in_own_loop(drive())


def _recorded_end(latest: CheckpointData) -> End:
    if latest.error is not None:
        return End(error=(latest.error.type, latest.error.message))
    return End(tree=plain_tree(latest.held_output, "output"))


def driven_in_other_process(
    target: Mapping[str, str],
    inputs: Mapping[str, Any],
    workflow: Workflow[Any, Any],
    latest: CheckpointData,
    *,
    seed: str = "",
) -> tuple[list[Difference] | None, str]:
    """Drive a workflow from a record in another process; return the differences, or None and why it was not done.

    Args:
        target: where the other process finds the workflow.
        inputs: its inputs by name.
        workflow: the workflow.
        latest: the record.
        seed: the seed of the hashes there (PYTHONHASHSEED); by default another one than here.
    """
    if not target.get("name") or not (target.get("file") or target.get("module")):
        return None, "it was not driven in another process: it is defined inside a function, where none finds it"
    if workflow.secret_inputs:
        return None, "it was not driven in another process: its secret inputs are written nowhere"
    encoded = bind_inputs(workflow, inputs).tree
    with tempfile.TemporaryDirectory(prefix="flowckpt-") as directory:
        asked, told = Path(directory, "asked.json"), Path(directory, "told.json")
        document = {"target": dict(target), "inputs": encoded, "checkpoint": json.loads(export_text(latest))}
        asked.write_text(codec.dumps(document), encoding="utf-8")
        environ = {
            **os.environ,
            "PYTHONHASHSEED": seed or ("2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"),
            "PYTHONPATH": os.pathsep.join(each for each in sys.path if each),
        }
        ended = subprocess.run(  # noqa: S603 - our own interpreter and module
            [sys.executable, "-m", _MODULE, str(asked), str(told)],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr.fileno() if _has_descriptor() else subprocess.DEVNULL,
            check=False,
        )
        if ended.returncode or not told.exists():
            return None, f"it was not driven in another process: that one ended with code {ended.returncode}"
        answer = json.loads(told.read_text(encoding="utf-8"))
    if "error" in answer:
        return None, f"it was not driven in another process: {answer['error']}"
    return [Difference(**each) for each in answer["differences"]], ""


def _has_descriptor() -> bool:
    try:
        sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):
        return False
    return True


# The other process: it drives a workflow from a record, and writes down what differs.


def main(asked: Path, told: Path) -> None:
    """Answer one question.

    Args:
        asked: the file with the target, the inputs and the record.
        told: the file to write the answer to.
    """
    question = json.loads(asked.read_text(encoding="utf-8"))
    try:
        workflow = load_target(question["target"])
        inputs = {
            name: codec.decode(tree, workflow.hints.get(name, Any), place=f"input {name}")
            for name, tree in question["inputs"].items()
        }
        found, _ = driven_again(workflow, inputs, read_export(question["checkpoint"]), place="another process")
        answer: dict[str, Any] = {"differences": [attrs.asdict(each) for each in found]}
    except FlowckptError as error:
        answer = {"error": error.message}
    told.write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
