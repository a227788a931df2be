"""Keeping the secrets of a run out of its record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from flowckpt.core.dsl import Step
from flowckpt.core.identity.secrets import KnownSecrets
from flowckpt.core.system.secret import HIDDEN
from flowckpt.errors import CommandFailedError, EncodingError, EvidenceError, StepDefinitionError

if TYPE_CHECKING:
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
    """Refuse a step whose name, checkpoint or version tells a secret.

    Raises:
        StepDefinitionError: it does.
    """
    if not secrets.is_any:
        return
    modifiers = step.modifiers
    for what, text in (("name", path), ("checkpoint id", modifiers.checkpoint_id), ("version tag", modifiers.version)):
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
