"""Which names a file may bring into a store.

They reach a path only through the stores' own encoder, and a terminal only escaped; but people read and type them.
"""

from __future__ import annotations

from flowckpt.errors import InputError
from flowckpt.ids import why_no_run_id
from flowckpt.portable.limits import MOST_PATH
from flowckpt.portable.strict_json import MalformedError


def check_run_id(name: object) -> str:
    """Return the id of a run that stands in a file, if it is one.

    Args:
        name: the id.

    Raises:
        MalformedError: it can be none.
    """
    if why := why_no_run_id(name):
        raise MalformedError(f"the id of the run {why} (--id NEW gives it another one)")
    return str(name)


def checked_new_id(workflow_id: object) -> str:
    """Return the id that a run is to have where it arrives.

    Args:
        workflow_id: what was given for it.

    Raises:
        InputError: it can be none.
    """
    if why := why_no_run_id(workflow_id):
        raise InputError(f"the id of a run {why}", parameter="workflow_id", remedy="Give another id.")
    return str(workflow_id)


def check_name(name: object, what: str) -> str:
    """Return a name of a step, a checkpoint or a workflow, if it is one.

    Args:
        name: the name.
        what: what it is of.

    Raises:
        MalformedError: it is empty, long, or has control characters.
    """
    if type(name) is not str or not name or len(name) > MOST_PATH or has_controls(name):
        raise MalformedError(
            f"{what} must be 1 to {MOST_PATH} characters, none of them for control, and is {name!r:.80}"
        )
    return name


def has_controls(text: str) -> bool:
    """Tell whether a text has characters that steer a terminal."""
    return any(ord(character) < 32 or 127 <= ord(character) < 160 for character in text)
