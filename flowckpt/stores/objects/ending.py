"""The end of an attempt: the object at the number where its next record would have been.

A number is taken once, so whoever puts an end there has ended the attempt for good: a writer that comes later finds
its number taken. Three may do so: the owner, giving the run up (`released`) or clearing it (`cleared`), and whoever
takes the run over (`fenced`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import attrs

from flowckpt.stores.file.line import START, opened, seal

RELEASED, FENCED, CLEARED = "released", "fenced", "cleared"
_BEGINS = b'{"flowckpt":"end"'


@attrs.frozen
class End:
    """The end of an attempt.

    Attributes:
        kind: `released`, `fenced` or `cleared`.
        at: when, by the clock of whoever wrote it.
        token: random text of whoever wrote it.
        run: how the run stands, as a list shows it, where its owner said so.
    """

    kind: str
    at: str
    token: str
    run: Mapping[str, Any] | None = None

    def line(self) -> bytes:
        """Return what its object holds."""
        body = json.dumps({"flowckpt": "end", **attrs.asdict(self)}, separators=(",", ":"))
        return seal(body[:-1].encode(), START)[0]


def is_end(content: bytes) -> bool:
    """Tell whether an object holds an end, and no record.

    Args:
        content: the content of the object.
    """
    return content.startswith(_BEGINS)


def end_in(content: bytes) -> End:
    """Return the end in an object.

    Args:
        content: the content of the object.

    Raises:
        ValueError: it is damaged.
    """
    if content[-1:] != b"\n" or opened(content[:-1], START) is None:
        raise ValueError("the end of an attempt does not match its checksum")
    said = json.loads(content)
    return End(said["kind"], said["at"], said["token"], said.get("run"))
