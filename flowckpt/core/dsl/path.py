"""A step's place in a run, as text.

A path is built from names and occurrences: `fetch` for the first use of a name, `fetch[1]` for the second, `fetch[2]`
for the third; `train/fit` inside a child. `%`, `/`, `[`, `]`, `@`, and characters that control or that are invisible (line
ends, terminal and bidi controls, zero widths) would make two paths alike, or look alike; inside a *name* they are
percent-encoded, so a step called `a/b` has the path `a%2Fb`.
"""

from __future__ import annotations

import re
from functools import lru_cache

from flowckpt.errors import StepDefinitionError

# A fixed list, not `str.isprintable`: a path is an identity, and must not change with Python's Unicode tables.
_SPECIAL = (
    r"[%/\[\]@\x00-\x1f\x7f-\x9f\xad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e"
    r"\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff0-\ufffb"
    r"\U000110bd\U000110cd\U00013430-\U0001345f\U0001bca0-\U0001bcaf\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
MAX_NAME_LENGTH = 500
MAX_DEPTH = 100
"""How many steps a step may lie in: each takes about five of the thousand calls that Python allows to nest."""


def _percent(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match.group().encode("utf-8", "surrogatepass"))


@lru_cache(maxsize=4096)
def encode_name(name: str) -> str:
    """Write a step's name so that it can stand in a path."""
    if name.isascii() and name.replace("_", "").replace("-", "").isalnum():
        return name  # as most are: the pattern takes 0.5 ms to compile
    return re.sub(_SPECIAL, _percent, name)


def check_depth(path: str) -> None:
    """Refuse a step that is made of steps and lies too deep, before anything in it is driven.

    Raises:
        StepDefinitionError: it lies in more than `MAX_DEPTH` others.
    """
    if path.count("/") >= MAX_DEPTH:
        raise StepDefinitionError(
            f"the step {path[:60]!r}… would nest steps more than {MAX_DEPTH} deep",
            step=path,
            remedy="Use a loop in one workflow instead of a workflow that runs itself, or start separate runs.",
        )


def path_of(name: str, occurrence: int = 0) -> str:
    """Return the path of a use of a name in its run.

    Args:
        name: the step's name.
        occurrence: 0 for the first use, 1 for the second …
    """
    return f"{encode_name(name)}[{occurrence}]" if occurrence else encode_name(name)
