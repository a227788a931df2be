"""One start or resume of a run, from taking the lease to the final event; and the checks of what it is given."""

from typing import TYPE_CHECKING

from flowckpt.core.system.lazy import lazy_exports

if TYPE_CHECKING:
    from flowckpt.engine.session import control as control
    from flowckpt.engine.session import outbox as outbox
    from flowckpt.engine.session import respond as respond
    from flowckpt.engine.session import session as session
    from flowckpt.engine.session import suspend as suspend
    from flowckpt.engine.values.inputs import (
        bind_inputs,
        check_id,
        check_workflow,
        refuse_output,
        require_workflow,
    )

_EXPORTS = {"flowckpt.engine.values.inputs": "bind_inputs check_workflow check_id require_workflow refuse_output"}

__all__ = ["bind_inputs", "check_id", "check_workflow", "refuse_output", "require_workflow"]

__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS, globals(), modules="control outbox respond session suspend")
