"""What flowckpt itself gives to workflows, as values of the closed set; `tags` loads this file at the first one it meets.

Their fields are written by name, so that a later version may add one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from flowckpt.core.codec import tags
from flowckpt.core.records.outputs import Approval, CommandOutput


def _to_body(value: Any) -> Any:
    return tags.encode(attrs.asdict(value, recurse=False))


def _from_body(cls: type) -> Callable[[Any], Any]:
    return lambda body: cls(**tags.decode(body))


tags.add("$approval", Approval, _to_body, _from_body(Approval))
tags.add("$command", CommandOutput, _to_body, _from_body(CommandOutput))
