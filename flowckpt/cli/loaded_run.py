"""A run to be resumed: its record, its program, and the inputs given again."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from flowckpt.cli.arguments import (
    ask_for_secrets,
    convert_inputs,
    describe_target,
    find_target_here,
    load_recorded_target,
    load_typed_target,
    refuse_import,
)
from flowckpt.cli.groups import add_store_option
from flowckpt.cli.notices import warn
from flowckpt.cli.render.terminal import escape, say
from flowckpt.cli.runs import open_chosen_store, read_latest, resolve_run, run_async
from flowckpt.cli.settings import StoreChoice, command_settings
from flowckpt.core.codec.blob import plain_tree
from flowckpt.core.dsl import Workflow
from flowckpt.core.records import CheckpointData, Status
from flowckpt.core.records.listing import IMPORTED, refuse_task
from flowckpt.core.system.attrs_base import FieldEquality, lazy_frozen
from flowckpt.core.system.declared import shell_word
from flowckpt.core.system.secret import MARK
from flowckpt.engine import undo
from flowckpt.engine.values.inputs import find_changed_defaults
from flowckpt.errors import CheckpointNotFoundError, TargetError, UntrustedStoreError
from flowckpt.stores.base import StoreBase

if TYPE_CHECKING:
    from flowckpt.engine import RunOptions
    from flowckpt.engine.undo.plan_resume import PlannedResume


@attrs.frozen(eq=False, repr=False)
class RecordedRun(FieldEquality):
    """A run that may be resumed.

    Attributes:
        workflow_id: the run.
        choice: the description of its store.
        store: the opened store.
        latest: its newest checkpoint.
        workflow: its workflow, loaded.
        target: the target as typed; None for the recorded one.
        moved_to: another target than the recorded one, in the form of the record.
        inputs: the inputs given again, by name.
        base_path: the directory to which the run moves; None if it stays.
    """

    workflow_id: str
    choice: StoreChoice
    store: StoreBase
    latest: CheckpointData
    workflow: Workflow[..., Any]
    target: str | None
    moved_to: Mapping[str, str] | None
    inputs: dict[str, Any]
    base_path: str | None = None


def load_recorded_run(
    choice: StoreChoice,
    workflow_id: str,
    *,
    target: str | None = None,
    inputs: Mapping[str, str] | None = None,
    asks_for_secrets: bool = False,
    accepts: Callable[[str, str], bool] | None = None,
    is_here: bool | None = None,
) -> RecordedRun:
    """Read a run, enter the directory in which it was started, and load its program.

    Args:
        choice: the store.
        workflow_id: the run, as typed.
        target: where the workflow is now, as typed; where it was at the start, if not given.
        inputs: inputs given again, as text.
        asks_for_secrets: whether to ask for needed secret inputs at a terminal.
        is_here: as for `enter_directory`.
        accepts: called for an imported run with its id, and its program and directory; returns whether the run may continue.

    Raises:
        CheckpointNotFoundError: the run does not exist.
        TargetError: the workflow or directory does not exist, or the run was imported and is not accepted.
        InputError: an input is unknown or does not fit, or the run is a task of a checkpoint manager.
    """
    store = open_chosen_store(choice)
    try:
        latest = read_latest(store, workflow_id)  # verified, because the target that it names is imported
    except CheckpointNotFoundError:
        workflow_id = resolve_run(store, workflow_id, is_unfinished=True)
        latest = read_latest(store, workflow_id)
    refuse_task(workflow_id, latest)
    recorded: Mapping[str, str] = latest.metadata.get("target", {})
    moved_to = find_target_here(recorded) if is_here else None
    is_accepted = False
    if accepts is not None and IMPORTED in latest.metadata:
        is_accepted = accepts(workflow_id, describe_target(moved_to or recorded))
    if not is_accepted and (target is None or accepts is not None):
        refuse_import(latest.metadata, workflow_id)
    if target is None:
        base_path = enter_directory(latest, workflow_id, is_here=is_here)
        workflow = load_recorded_target(moved_to or recorded, workflow_id)
    else:
        workflow, moved_to = load_typed_target(target)  # before the current directory changes
        base_path = enter_directory(latest, workflow_id, is_here=is_here)
    values = convert_inputs(workflow, inputs or {})
    if is_here is not None and not values.keys() - workflow.secret_inputs.keys():  # else another input is refused
        for name, (kept, default) in find_changed_defaults(workflow, latest).items():
            text = f"input {name}: recorded {kept}, the default in the code is now {default}; the run keeps {kept}"
            say(f"flowckpt: {escape(text)}")
    if workflow.secret_inputs:
        # A completed run most likely needs no secrets.
        at_terminal = asks_for_secrets and latest.status is not Status.COMPLETED
        ask_for_secrets(workflow, _find_given_secrets(workflow, latest), values, at_terminal=at_terminal)
    return RecordedRun(workflow_id, choice, store, latest, workflow, target, moved_to, values, base_path)


def enter_directory(latest: CheckpointData, workflow_id: str, *, is_here: bool | None) -> str | None:
    """Change to the directory in which a run was started, to which relative paths of its steps and evidence refer.

    Args:
        latest: the newest checkpoint of the run.
        workflow_id: the run.
        is_here: whether to stay in the current directory. If False, and the run's directory is another one, that is shown.

    Returns:
        The directory to which the run moves, or None if it stays.

    Raises:
        TargetError: the directory cannot be entered.
    """
    if is_here:
        return str(Path.cwd())
    directory = latest.metadata.get("base_path") or latest.metadata.get("target", {}).get("cwd")
    if not isinstance(directory, str) or not directory or directory == str(Path.cwd()):
        return None
    move = f"'flowckpt resume {shell_word(workflow_id)} --here'"
    try:
        os.chdir(directory)
    except OSError as error:
        raise TargetError(
            f"run {workflow_id!r} was started in {directory}, which cannot be entered: {error.strerror}",
            target=directory,
            remedy=f"If it was moved, go to its new place and add --here, as in {move}. Otherwise create it again.",
        ) from error
    if is_here is not None:
        say(
            f"flowckpt: working in {escape(directory)}, the directory of run {escape(workflow_id)}; "
            + add_store_option(escape(f"to move the run to the current directory: {move}"))
        )
    return None


def _find_given_secrets(workflow: Workflow[..., Any], latest: CheckpointData) -> list[str]:
    """Return the secret inputs that were given at the start."""
    recorded, defaulted = plain_tree(latest.held_inputs, "inputs"), latest.metadata.get("defaulted", ())
    return [name for name in workflow.secret_inputs if recorded.get(name) == MARK and name not in defaulted]


# The program of a recorded run, for commands that may not need it.


@lazy_frozen()
class LazyProgram:
    """The program of a run, loaded if its record alone cannot answer.

    Attributes:
        workflow_id: the run.
        latest: its newest checkpoint.
        typed: the workflow of a typed target, or None.
        moved_to: another target than the recorded one, in the form of the record; or None.
        base_path: the directory to which the run moves, or None if it stays where it was.
    """

    workflow_id: str
    latest: CheckpointData
    typed: Workflow[..., Any] | None
    moved_to: Mapping[str, str] | None
    base_path: str | None

    def load(self) -> Workflow[..., Any]:
        """Return the workflow.

        Raises:
            TargetError: it cannot be loaded.
        """
        if self.typed is not None:
            return self.typed
        refuse_import(self.latest.metadata, self.workflow_id)
        return load_recorded_target(self.moved_to or self.latest.metadata.get("target", {}), self.workflow_id)

    def __call__(self) -> Workflow[..., Any] | None:
        """Return the workflow, or warn that it cannot be loaded."""
        try:
            return self.load()
        except UntrustedStoreError:
            raise
        except Exception as error:
            warn(f"the run's program cannot be loaded, so claims that need it cannot be checked: {error}")
            return None


def prepare_program(
    store: StoreBase, workflow_id: str, target: str | None, *, is_here: bool, takes_tasks: bool = False
) -> LazyProgram:
    """Enter the directory in which a run was started, and return its program.

    Args:
        store: the store of the run.
        workflow_id: the run.
        target: the target as typed; None for the recorded one.
        is_here: whether to stay in the current directory.
        takes_tasks: whether it may be a task of a checkpoint manager.

    Raises:
        CheckpointNotFoundError: there is no such run.
        TargetError: the target or directory does not exist.
        InputError: it is a task of a checkpoint manager, and may be none.
    """
    latest = read_latest(store, workflow_id)
    if not takes_tasks:
        refuse_task(workflow_id, latest)
    typed, moved_to = None, find_target_here(latest.metadata.get("target", {})) if is_here else None
    if target is not None:
        typed, moved_to = load_typed_target(target)  # before the current directory changes
    is_entered = is_here or IMPORTED not in latest.metadata  # an imported record may name any directory
    base_path = enter_directory(latest, workflow_id, is_here=is_here) if is_entered else None
    return LazyProgram(workflow_id, latest, typed, moved_to, base_path)


def plan_run(run: RecordedRun, options: RunOptions) -> PlannedResume:
    """Plan the resume of a run without running or saving anything.

    Raises:
        InputMismatchError: an input differs from the recorded one.
        WorkflowChangedError: it is another workflow.
        StepNotFoundError: the step to continue from is not in the record.
    """
    most = command_settings()["max_crashes"]
    return run_async(
        undo.plan_resume.plan_resume(
            run.store, run.workflow, run.workflow_id, run.latest, inputs=run.inputs, options=options, max_crashes=most
        )
    )
