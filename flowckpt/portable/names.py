"""Which names a file may bring into a store.

They reach a path only through the stores' own encoder, and a terminal only escaped; but people read and type them.
"""

from __future__ import annotations

import re

from flowckpt.portable.limits import MOST_NAME, MOST_PATH
from flowckpt.portable.strict_json import MalformedError

_STEPS_UP = re.compile(r"(?:^|[/\\])\.{1,2}(?:[/\\]|$)")


def check_run_id(name: object) -> str:
    """Return the id of a run, if it is one that the command line would take.

    Args:
        name: the id.

    Raises:
        MalformedError: it is empty, long, not printable, or looks like a way through directories.
    """
    if type(name) is not str or not name.strip() or not name.isprintable() or len(name) > MOST_NAME:
        raise MalformedError(f"the run's id must be 1 to {MOST_NAME} printable characters, and is {name!r:.80}")
    if _STEPS_UP.search(name) or name[0] in "/\\~" or name[:1] == "-":
        raise MalformedError(f"the run's id looks like a path or an option: {name!r:.80}")
    return name


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
