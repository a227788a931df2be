"""The language: workflows, steps, actions and modifiers. Values only; nothing here runs anything."""

from typing import TYPE_CHECKING

from flowckpt.core.dsl.actions import Action, PythonAction
from flowckpt.core.dsl.modifiers import Modifiers
from flowckpt.core.dsl.path import path_of
from flowckpt.core.dsl.step import Step, StepWithoutAction, step
from flowckpt.core.dsl.workflow import Workflow, workflow
from flowckpt.core.system.lazy import front_door

if TYPE_CHECKING:
    from flowckpt.core.dsl.modifiers import RetryPolicy
    from flowckpt.core.dsl.world import now, random, uuid


__all__ = [
    "Action",
    "Modifiers",
    "PythonAction",
    "RetryPolicy",
    "Step",
    "StepWithoutAction",
    "Workflow",
    "now",
    "path_of",
    "random",
    "step",
    "uuid",
    "workflow",
]

# What few workflows use comes when it is asked for (PEP 562).
_ROOMS = {
    "flowckpt.core.dsl.modifiers": "RetryPolicy",
    "flowckpt.core.dsl.world": "now random uuid",
}
__getattr__, __dir__ = front_door(__name__, _ROOMS, __all__, globals())
