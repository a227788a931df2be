"""What may be given to a manager, and the ids of tasks, steps and checkpoints.

An id leads to its task by itself, after a restart too and in every store: `TASK@CHECKPOINT` for a checkpoint,
`TASK@[SEQUENCE]PATH` for a begun step. What stands behind the last `@` is the id in the store.
"""

from __future__ import annotations

from collections.abc import Iterable

from flowckpt.dsl.path import MAX_NAME_LENGTH
from flowckpt.errors import SettingError
from flowckpt.ids import why_no_run_id


def public_id(task_id: str, local_id: str) -> str:
    """Return the id that people and programs use.

    Args:
        task_id: the task.
        local_id: the id in the store.
    """
    return f"{task_id}@{local_id}"


def split_id(given: object, setting: str) -> tuple[str, str]:
    """Return the task and the id in the store.

    Args:
        given: an id that a manager returned; or one without a task, which comes back with an empty task.
        setting: what the argument is called, for an error.

    Raises:
        SettingError: it is no text.
    """
    if not isinstance(given, str):
        raise SettingError(
            f"{setting} is {given!r:.80} ({type(given).__name__}), not the text of an id",
            setting=setting,
            remedy="Give the id that the manager returned.",
        )
    task_id, _, local_id = given.rpartition("@")
    return task_id, local_id


def local_part(given: str, task_id: str) -> str:
    """Return the id in the store of an id of a known task.

    Args:
        given: the id.
        task_id: its task.
    """
    return given[len(task_id) + 1 :]


def marker_id(path: str, sequence: int) -> str:
    """Return the id in the store of the record that a step was begun; no other record has such a one.

    Args:
        path: the step's place in the task.
        sequence: the record's place in the task.
    """
    return f"[{sequence}]{path}"


def sequence_in_marker(local_id: str) -> int:
    """Return the place in the task of the record that a step was begun; 0 where that record was removed.

    Args:
        local_id: the record's id in the store.
    """
    return int(local_id[1:].partition("]")[0])


def path_in_marker(local_id: str) -> str:
    """Return the path of a begun step from the id of its record.

    Args:
        local_id: the record's id in the store.
    """
    return local_id.partition("]")[2]


def checked_text(value: object, setting: str) -> str:
    """Return a task's id or a type of checkpoints, or refuse it.

    Args:
        value: what was given.
        setting: what the argument is called.

    Raises:
        SettingError: it is no text, or blank, or too long.
    """
    if not isinstance(value, str) or not value.strip() or len(value) > MAX_NAME_LENGTH:
        raise SettingError(
            f"{setting} must be text, not blank, and of at most {MAX_NAME_LENGTH} characters, not {value!r:.80} "
            f"({type(value).__name__})",
            setting=setting,
            remedy="Give a short name.",
        )
    return value


def checked_task_id(value: object) -> str:
    """Return the id of a task, or refuse it: a task lies in its store as a run does, and has an id like one.

    Args:
        value: what was given.

    Raises:
        SettingError: it can be no id of a run.
    """
    if why := why_no_run_id(value):
        raise SettingError(f"the id of a task {why}", setting="task_id", remedy="Give another id.")
    return str(value)


def checked_checkpoint_id(value: object) -> str:
    """Return a checkpoint's id that the program chose, or refuse it.

    Args:
        value: what was given.

    Raises:
        SettingError: it could be mistaken for an id that the manager makes.
    """
    chosen = checked_text(value, "checkpoint_id")
    if "@" in chosen or "[" in chosen:
        raise SettingError(
            f"the checkpoint id {chosen!r:.80} has an '@' or a '[', which have a meaning in ids",
            setting="checkpoint_id",
            remedy="Choose an id without them.",
        )
    return chosen


def checked_most(value: object) -> int | None:
    """Return how many checkpoints a task may keep, or refuse the number.

    Args:
        value: what was given as `max_per_task`.

    Raises:
        SettingError: it is no whole number from 1 on.
    """
    if value is not None and (type(value) is not int or value < 1):
        raise SettingError(
            f"max_per_task is a whole number from 1 on, or None for no limit, not {value!r:.80}",
            setting="max_per_task",
            remedy="Give 1 or more: the newest checkpoint is never removed.",
        )
    return value


def checked_plan(value: object) -> tuple[str, ...]:
    """Return the names of planned steps, or refuse them.

    Args:
        value: what was given.

    Raises:
        SettingError: it is no list of names.
    """
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise SettingError(
            f"a plan is a list of names, not {value!r:.80} ({type(value).__name__})",
            setting="steps",
            remedy="Write a list.",
        )
    return tuple(checked_text(step, "steps") for step in value)


def checked_limit(value: object) -> int:
    """Return how many checkpoints to list, or refuse the number.

    Args:
        value: what was given.

    Raises:
        SettingError: it is negative, or no whole number.
    """
    if type(value) is not int or value < 0:
        raise SettingError(
            f"limit is a whole number from 0 on, not {value!r:.80}", setting="limit", remedy="Write limit=100."
        )
    return value
