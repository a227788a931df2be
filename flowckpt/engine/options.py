"""What can be said about a run beside its inputs; one value, so that inputs may have any other name."""

from __future__ import annotations

from collections.abc import Mapping

import attrs


@attrs.frozen(kw_only=True)
class RunOptions:
    """Options of starting or resuming a run.

    Attributes:
        tags: labels by which runs are listed; recorded at the start.
        target: how the workflow is found again by `flowckpt resume`; worked out from the function where not given.
        steal: take the run over although its owner's process still holds it.
    """

    tags: Mapping[str, str] = attrs.field(factory=dict)
    target: Mapping[str, str] | None = None
    steal: bool = False
