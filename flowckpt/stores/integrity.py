"""Checking all that a store holds, and what is found in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import attrs


@attrs.frozen
class Finding:
    """Something that the check of a store found.

    Attributes:
        workflow_id: the run, or an empty string for the store itself.
        severity: `ok`, `notice` (harmless, as a torn last record), `corrupt`, or `locked` (a key is missing, so nothing
            is known about it).
        detail: what was found, with its place.
    """

    workflow_id: str
    severity: str
    detail: str


@runtime_checkable
class ChecksIntegrity(Protocol):
    """A store that can read all it holds and say what is damaged."""

    async def check(self, workflow_id: str | None = None) -> Sequence[Finding]:
        """Read and verify, changing nothing.

        Args:
            workflow_id: one run, or None for all.
        """
        ...
