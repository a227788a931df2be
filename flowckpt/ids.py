"""Ids of runs, injected: a ULID sorts by the time of its making and needs no coordination."""

from __future__ import annotations

from collections.abc import Callable

IdFactory = Callable[[], str]
"""Makes the id of a new run."""


def new_run_id() -> str:
    """Return a new ULID (26 characters, Crockford's base 32; see github.com/ulid/spec)."""
    from ulid import ULID  # imported at the first new run: it costs 18 ms, and a resume never needs it

    return str(ULID())
