"""The mark of an arrival: the first record of an attempt that belongs to a run which is brought whole.

Such an attempt, and all below it, count as soon as whoever brought the run has put its end, `released`. Until then, and
for good where another one put an end there first, nobody sees anything of them: the run is as if it had been cleared.
"""

from __future__ import annotations

import json

from flowckpt.stores.file.line import START, opened, seal

_BEGINS = b'{"flowckpt":"arrival"'


def mark_of(token: str) -> bytes:
    """Return what the mark holds.

    Args:
        token: random text of whoever brings the run.
    """
    return seal(json.dumps({"flowckpt": "arrival", "token": token}, separators=(",", ":"))[:-1].encode(), START)[0]


def is_mark(content: bytes) -> bool:
    """Tell whether a record is the mark of an arrival.

    Args:
        content: what its object holds.
    """
    return content.startswith(_BEGINS)


def is_whole(content: bytes) -> bool:
    """Tell whether a mark matches its checksum.

    Args:
        content: what its object holds.
    """
    return content[-1:] == b"\n" and opened(content[:-1], START) is not None
