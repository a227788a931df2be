"""Where a step runs: what `.on()` is given."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import attrs

from flowckpt.dsl.caller import caller
from flowckpt.errors import StepDefinitionError
from flowckpt.finite import is_finite_number

EXECUTOR_NAME = re.compile(r"[A-Za-z_][\w.-]{0,99}")
"""What an executor may be called; a name is never mistaken for a description such as `dask://host:8786`."""


@attrs.frozen
class Placement:
    """Where a step runs. It is no part of the step's identity: moved elsewhere, its recorded result stays true.

    Attributes:
        executor: the name of the executor.
        resources: what a worker must have, and how much of it the step takes, by name.
    """

    executor: str
    resources: Mapping[str, float] = attrs.field(factory=dict)


def placement(step_name: str, executor: Any, resources: Any) -> Placement:
    """Check the arguments of `.on()` and return them as one value; see `Modifiable.on`."""
    if not isinstance(executor, str) or EXECUTOR_NAME.fullmatch(executor) is None:
        raise StepDefinitionError(
            f"step {step_name!r}: .on() takes the name of an executor, got {executor!r:.80} ({type(executor).__name__})",
            step=step_name,
            where=caller(),
            remedy='Write .on("process"), or a name that the engine is given: WorkflowEngine(executors={"gpu": …}).',
        )
    for name, amount in _items(step_name, resources):
        if not isinstance(name, str) or not name.strip() or not is_finite_number(amount) or amount <= 0:
            raise StepDefinitionError(
                f"step {step_name!r}: .on(resources=…) has {name!r:.40}: {amount!r:.40}",
                step=step_name,
                where=caller(),
                remedy='A resource has a name and an amount above 0: {"GPU": 1}.',
            )
    return Placement(str.__str__(executor), dict(resources or {}))


def _items(step_name: str, resources: Any) -> Any:
    if resources is None:
        return ()
    if not isinstance(resources, Mapping):
        raise StepDefinitionError(
            f"step {step_name!r}: .on(resources=…) takes a mapping, got {resources!r:.80} ({type(resources).__name__})",
            step=step_name,
            where=caller(),
            remedy='As {"GPU": 1}.',
        )
    return resources.items()
