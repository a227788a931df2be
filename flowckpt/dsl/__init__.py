"""The language: workflows, steps, actions and modifiers. Values only; nothing here runs anything."""

from typing import TYPE_CHECKING

from flowckpt.dsl.actions import Action, PythonAction
from flowckpt.dsl.modifiers import Modifiers
from flowckpt.dsl.path import path_of
from flowckpt.dsl.step import Step, StepWithoutAction, step
from flowckpt.dsl.workflow import Workflow, workflow
from flowckpt.lazy import front_door

if TYPE_CHECKING:
    from flowckpt.dsl.recorded import now, random, uuid
    from flowckpt.dsl.retry import RetryPolicy

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
    "RetryPolicy": "flowckpt.dsl.retry",
    "now": "flowckpt.dsl.recorded",
    "random": "flowckpt.dsl.recorded",
    "uuid": "flowckpt.dsl.recorded",
}
__getattr__, __dir__ = front_door(__name__, _ROOMS, __all__, globals())
