"""How far a step is, in a few words."""

from __future__ import annotations


def progress_text(done: float, total: float | None, note: str) -> str:
    """Write how far a step is: `1,200 of 5,000 (24 %), parsing`.

    Args:
        done: how much is done.
        total: how much there is, or None.
        note: what it is at; may be empty.
    """
    text = _number(done)
    if total is not None:
        text += f" of {_number(total)}"
        if total > 0:
            text += f" ({min(100, int(100 * done / total))} %)"
    return f"{text}, {note}" if note else text


def _number(value: float) -> str:
    if isinstance(value, int) or value.is_integer():
        return f"{int(value):,}"
    return f"{value:,.2f}"
