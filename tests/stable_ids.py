"""Ids of test parameters that are the same in every process, so that a test can be run again by its id."""

from __future__ import annotations

import re

ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def stable(value: object) -> str:
    """Return `str` of a value without addresses, and with sets in a fixed order."""
    if isinstance(value, set | frozenset):
        return f"{type(value).__name__}({', '.join(sorted(map(stable, value)))})"
    return ADDRESS.sub("", str(value))
