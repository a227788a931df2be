"""A run's inputs: bound, encoded, hashed, and compared with the recorded ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from flowckpt import codec, hashing
from flowckpt.codec.blob import Recorded
from flowckpt.dsl import Workflow
from flowckpt.errors import InputMismatchError


@attrs.frozen
class BoundInputs:
    """Inputs as they are recorded.

    Attributes:
        tree: the tree of each input, by name.
        hash: the digest of them all.
        defaulted: the names that nobody gave.
    """

    tree: Mapping[str, Any]
    hash: str
    defaulted: tuple[str, ...]

    @property
    def recorded(self) -> Recorded:
        """The inputs as a checkpoint holds them."""
        return Recorded(self.tree)

    def values(self, workflow: Workflow[Any, Any]) -> dict[str, Any]:
        """Decode the inputs: the generator gets what a resumed one gets, on the first run too."""
        return {
            name: codec.decode(tree, workflow.hints.get(name, Any), place=f"input {name}")
            for name, tree in self.tree.items()
        }


def bind_inputs(workflow: Workflow[Any, Any], given: Mapping[str, Any]) -> BoundInputs:
    """Bind, encode and hash inputs.

    Args:
        workflow: the workflow.
        given: inputs by name; defaults are applied.

    Raises:
        InputError: one is unknown or missing.
        EncodingError: one cannot be recorded.
    """
    bound = workflow.bind(given)
    tree = {
        name: codec.encode(value, workflow.hints.get(name, Any), place=f"input {name}") for name, value in bound.items()
    }
    return BoundInputs(tree, hashing.digest(tree), tuple(name for name in bound if name not in given))


def rebind_inputs(
    workflow: Workflow[Any, Any],
    *,
    recorded: Mapping[str, Any],
    recorded_hash: str,
    defaulted: tuple[str, ...],
    given: Mapping[str, Any],
) -> BoundInputs:
    """Bind the inputs of a resume and compare them with the record.

    What is not given now is taken from the record; but where inputs are given again, one that was left to its default
    at the start is left to its default now, so that a changed default is noticed.

    Args:
        workflow: the workflow.
        recorded: the recorded inputs' trees.
        recorded_hash: their recorded digest.
        defaulted: the inputs that nobody gave at the start.
        given: the inputs given now, perhaps none.

    Raises:
        InputMismatchError: they differ; it says which.
        InputError: one is unknown.
    """
    left_out = set(defaulted) if given else set()
    parameters = workflow.signature.parameters
    kept = {
        name: codec.decode(tree, workflow.hints.get(name, Any), place=f"input {name}")
        for name, tree in recorded.items()
        if name in parameters and name not in given and name not in left_out
    }
    bound = bind_inputs(workflow, {**kept, **given})
    if bound.hash != recorded_hash:
        raise InputMismatchError(
            expected_hash=recorded_hash,
            actual_hash=bound.hash,
            differences=hashing.differences(recorded, bound.tree),
        )
    return attrs.evolve(bound, defaulted=defaulted)
