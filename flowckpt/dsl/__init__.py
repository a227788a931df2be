"""The language: workflows, steps, actions and modifiers. Values only; nothing here runs anything."""

from flowckpt.dsl.actions import Action, PythonAction
from flowckpt.dsl.modifiers import Modifiers
from flowckpt.dsl.path import path_of
from flowckpt.dsl.recorded import now, random, uuid
from flowckpt.dsl.retry import RetryPolicy
from flowckpt.dsl.step import Step, StepWithoutAction, step
from flowckpt.dsl.workflow import Workflow, workflow

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
