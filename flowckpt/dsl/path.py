"""A step's place in a run, as text.

A path is built from names and occurrences: `fetch` for the first use of a name, `fetch[1]` for the second, `fetch[2]`
for the third; `train/fit` inside a child. `/`, `[`, `]`, a leading `@` and control characters inside a *name* would make
two paths look alike, or reach a terminal; they are percent-encoded, so a step called `a/b` has the path `a%2Fb`.
"""

from __future__ import annotations

import re
from functools import lru_cache

_SPECIAL = re.compile(r"[%/\[\]@\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
MAX_NAME_LENGTH = 500


def _percent(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match.group().encode("utf-8", "surrogatepass"))


@lru_cache(maxsize=4096)
def encode_name(name: str) -> str:
    """Write a step's name so that it can stand in a path."""
    return _SPECIAL.sub(_percent, name)


def path_of(name: str, occurrence: int = 0) -> str:
    """Return the path of a use of a name in its run.

    Args:
        name: the step's name.
        occurrence: 0 for the first use, 1 for the second …
    """
    return f"{encode_name(name)}[{occurrence}]" if occurrence else encode_name(name)
