"""Ids of runs: what may be one, and how a new one is made.

One rule holds wherever a run gets its id: when it is run, forked, copied and imported, and for the task of a checkpoint
manager. An id never becomes a path, a column or an object's name as it is (every store encodes it), so `../x` and `-x` are
ids like any other; what cannot be shown, typed or encoded is not an id.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from flowckpt.core.system import external
from flowckpt.errors import InputError

IdFactory = Callable[[], str]
"""Makes the id of a new run."""

MOST_CHARACTERS = 200
"""How long the id of a run may be."""


def new_run_id() -> str:
    """Return a new ULID in lower case, which is safe as the name of a directory on every file system."""
    return new_message_id().lower()


def new_message_id() -> str:
    """Return a new ULID (26 characters, Crockford's base 32; see github.com/ulid/spec)."""
    from ulid import ULID  # imported at the first new run: it costs 18 ms, and a resume never needs it

    return str(ULID())


def why_no_run_id(value: object) -> str:
    """Return why a value cannot be the id of a new run, as what is said of it; an empty text where it can."""
    if isinstance(value, str) and value.strip() and value.isprintable() and len(value) <= MOST_CHARACTERS:
        return ""
    shown = f"{value!r:.60}{'…' if len(repr(value)) > 60 else ''}"
    kind = "" if isinstance(value, str) else f" ({type(value).__name__})"
    return f"must be 1 to {MOST_CHARACTERS} printable characters, and not blank; got {shown}{kind}"


# Random numbers and UUIDs of the machine, where no others are injected.
#
# Their libraries are imported at the first one: most runs need neither, and a resume is quicker by 2 ms.


def checked_new_id(workflow_id: object) -> str:
    """Return the id of a run that is about to be made.

    Raises:
        InputError: it can be none.
    """
    if why := why_no_run_id(workflow_id):
        remedy = "Give another id, or none to get a new one."
        raise InputError(f"a run id {why}", parameter="workflow_id", remedy=remedy)
    return str(workflow_id)


def drawn() -> float:
    """Return a random number in [0, 1)."""
    return external.random.random()


def new_uuid() -> external.uuid.UUID:
    """Return a new UUID of version 4."""
    return external.uuid.uuid4()


def new_token(size: int) -> str:
    """Return random bytes as hex digits, as `secrets.token_hex` does.

    Args:
        size: how many bytes.
    """
    return os.urandom(size).hex()
