"""Run ids: which are valid, and how new ones are made.

The same rule applies wherever a run gets its id: at a start, fork, copy or import, and for a task of a checkpoint
manager. Every store encodes an id before it uses it in a path, a column or an object's name, so `../x` and `-x` are
valid ids; text that cannot be shown, typed or encoded is not.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from flowckpt.core.system import external
from flowckpt.errors import InputError

IdFactory = Callable[[], str]
"""Makes the id of a new run."""

MOST_CHARACTERS = 200
"""Maximum length of a run id."""


def new_run_id() -> str:
    """Return a new ULID in lower case, which is safe as the name of a directory on every file system."""
    return new_message_id().lower()


def new_message_id() -> str:
    """Return a new ULID (26 characters, Crockford's base 32; see github.com/ulid/spec)."""
    from ulid import ULID  # takes 18 ms, and a resume never needs it

    return str(ULID())


def why_invalid_run_id(value: object) -> str:
    """Return why a value cannot be the id of a new run, to follow "a run id"; empty if it can."""
    if isinstance(value, str) and value.strip() and value.isprintable() and len(value) <= MOST_CHARACTERS:
        return ""
    shown = f"{value!r:.60}{'…' if len(repr(value)) > 60 else ''}"
    kind = "" if isinstance(value, str) else f" ({type(value).__name__})"
    return f"must be 1 to {MOST_CHARACTERS} printable characters and not blank; got {shown}{kind}"


# The default sources of random numbers and UUIDs. Their modules are imported on first use: that saves a resume 2 ms.


def check_new_id(workflow_id: object) -> str:
    """Return the id of a new run if it is valid.

    Raises:
        InputError: the id is invalid.
    """
    if why := why_invalid_run_id(workflow_id):
        remedy = "Pass another id, or none to generate one."
        raise InputError(f"a run id {why}", parameter="workflow_id", remedy=remedy)
    return str(workflow_id)


def random_number() -> float:
    """Return a random number in [0, 1)."""
    return external.random.random()


def new_uuid() -> external.uuid.UUID:
    """Return a new UUID of version 4."""
    return external.uuid.uuid4()


def new_token(size: int) -> str:
    """Return random bytes as hex digits, like `secrets.token_hex`.

    Args:
        size: the number of bytes.
    """
    return os.urandom(size).hex()
