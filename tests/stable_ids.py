"""Ids of parameters that are the same in every process, as a run on several workers needs them."""

from __future__ import annotations

import re

ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def stable(value: object) -> str:
    """Write a value as `str` does, without addresses, and sets in a fixed order."""
    if isinstance(value, set | frozenset):
        return f"{type(value).__name__}({', '.join(sorted(map(stable, value)))})"
    return ADDRESS.sub("", str(value))
