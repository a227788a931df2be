"""What a step saved of itself while it ran, and what identifies the step that saved it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from flowckpt.checkpoint.result import look
from flowckpt.fieldwise import Fieldwise


@attrs.frozen(eq=False, repr=False)
class PartialState(Fieldwise):
    """What a step saved of itself by `current_step().save(…)`; kept until the step has ended well.

    Attributes:
        state: what it saved, decoded by the closed set of types (a fresh value at each access).
        function: `module:qualname` of the step's function.
        fingerprint: what identifies its code; empty where it cannot be known.
        arguments: what the record keeps of its arguments.
        version: its `.version()` tag, or None.
    """

    _state: Any = attrs.field(eq=look, alias="state")
    function: str = ""
    fingerprint: str = ""
    arguments: Mapping[str, Any] = attrs.field(factory=dict)
    version: str | None = None

    @property
    def held_state(self) -> Any:
        """The state as the record holds it: a plain value, or a `LazyValue`; for the codec and the stores."""
        return self._state

    @property
    def state(self) -> Any:
        """What the step saved."""
        return look(self._state)
