"""The language: workflows, steps, actions and modifiers. Values only; nothing here runs anything."""

from typing import TYPE_CHECKING

from flowckpt.core.dsl.builder import StepBuilder, step
from flowckpt.core.dsl.checks import path_of
from flowckpt.core.dsl.modifiers import Modifiers
from flowckpt.core.dsl.step import Action, PythonAction, Step
from flowckpt.core.dsl.workflow import NextGeneration, Workflow, continue_as, workflow
from flowckpt.core.system.lazy import lazy_exports

if TYPE_CHECKING:
    from flowckpt.core.dsl import command as command
    from flowckpt.core.dsl import composites as composites
    from flowckpt.core.dsl import world as world
    from flowckpt.core.dsl.modifiers import RetryPolicy
    from flowckpt.core.dsl.world import now, patched, random, uuid


__all__ = [
    "Action",
    "Modifiers",
    "NextGeneration",
    "PythonAction",
    "RetryPolicy",
    "Step",
    "StepBuilder",
    "Workflow",
    "continue_as",
    "now",
    "patched",
    "path_of",
    "random",
    "step",
    "uuid",
    "workflow",
]

# Imported on first use (PEP 562): few workflows need these.
_EXPORTS = {
    "flowckpt.core.dsl.modifiers": "RetryPolicy",
    "flowckpt.core.dsl.world": "now patched random uuid",
}
__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS, globals(), modules="command composites world")
