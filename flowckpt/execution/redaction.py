"""Keeping the secrets of a run out of its record."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from flowckpt.core.codec.checkpoints import encode_head, result_document
from flowckpt.core.dsl import Step
from flowckpt.core.identity.secrets import KnownSecrets
from flowckpt.core.system.secret import HIDDEN
from flowckpt.errors import CommandFailedError, EncodingError, EvidenceError, StepDefinitionError

if TYPE_CHECKING:
    from flowckpt.core.records import CheckpointData, StepResult
    from flowckpt.core.records.outputs import CommandOutput


def refuse_secrets(tree: Any, secrets: KnownSecrets, place: str) -> None:
    """Refuse to record an output that holds a secret: it must come back as it is, so nothing can be taken out of it.

    Raises:
        EncodingError: it holds one; the error names the place.
    """
    if found := secrets.place_in(tree, place):
        raise EncodingError(
            f"{secrets.text(found)} holds a secret of the run, and secrets are never recorded: return something without it, "
            "or mark the step .secret()",
            place=secrets.text(found),
        )


def refuse_secret_names(step: Step[Any], path: str, secrets: KnownSecrets) -> None:
    """Refuse a step that has a secret in a text that is recorded, shown, or looked for as it is.

    Raises:
        StepDefinitionError: it does.
    """
    if not secrets.is_any:
        return
    modifiers, action = step.modifiers, step.action
    placed = modifiers.placement
    texts: dict[str, Iterable[str | None]] = {
        "name": (path, step.name),
        "checkpoint id": (modifiers.checkpoint_id,),
        "version tag": (modifiers.version,),
        "executor": () if placed is None else (placed.executor, *placed.resources),
        "awaited name": (getattr(action, "name", ""),) if action.is_waiting else (),
        "argument's name": getattr(action, "kwargs", ()),
        "variable's name": getattr(action, "env", None) or (),
    }
    for what, text in ((what, text) for what, each in texts.items() for text in each):
        if text and secrets.is_in(text):
            raise StepDefinitionError(
                f"the {what} of a step holds a secret of the run: {secrets.text(text)!r}",
                step=secrets.text(step.name),
                remedy="Name the work, and pass the secret as an argument: names are recorded and shown.",
            )


def refuse_secret_claims(document: Any, secrets: KnownSecrets, path: str) -> None:
    """Refuse to record claims that hold a secret: they must be checked again later as they are.

    Raises:
        EvidenceError: they do.
    """
    if secrets.is_any and secrets.tree(document) != document:
        raise EvidenceError(
            f"{path}: a claim of its evidence holds a secret of the run, and claims are recorded",
            remedy="Claim something that can be checked without it; credentials belong to the verifier, which never records "
            "them: EvidenceVerifier(credentials=…).",
        )


_OF_THE_CODE = {"function", "location", "fingerprint", "target", "base_path", "defaulted"}
"""Fields that come from the source code and the machine, not from the strings that a workflow passes."""


def refuse_secret_record(data: CheckpointData, results: Sequence[StepResult], secrets: KnownSecrets) -> None:
    """Refuse to write a checkpoint that holds a secret: the last look, where its bytes leave the engine.

    Args:
        data: the checkpoint.
        results: those of its results that no earlier checkpoint holds.
        secrets: the secrets of the run.

    Raises:
        EncodingError: it holds one; nothing was written.
    """
    documents = [(each.path, result_document(each)) for each in results]
    head, _ = encode_head(data, data)  # without the inputs, which are checked where they are bound
    documents.append((f"checkpoint {data.checkpoint_id!r}", {**head, **data.metadata}))
    for place, document in documents:
        for name, tree in document.items():
            if name not in _OF_THE_CODE:
                refuse_secrets(tree, secrets, f"{place}: {name}")


def hidden_output(output: CommandOutput, secrets: KnownSecrets) -> CommandOutput:
    """Return what a program wrote without the secrets of the run."""
    if not secrets.is_any:
        return output
    return attrs.evolve(output, stdout=secrets.text(output.stdout), stderr=secrets.text(output.stderr))


def hide_output_of(error: BaseException) -> None:
    """Take out of an error what a secret program wrote: its output is the secret."""
    if isinstance(error, CommandFailedError):
        error.stdout = error.stderr = HIDDEN
    if isinstance(error, CommandFailedError | TimeoutError):
        error.__notes__ = []
