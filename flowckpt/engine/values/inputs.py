"""A run's inputs: bound, encoded, hashed, and compared with the recorded ones. Secret values are never recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import Any, NoReturn

import attrs

from flowckpt.core import codec
from flowckpt.core.codec import tags
from flowckpt.core.codec.annotations import find_unstorable, has_type
from flowckpt.core.codec.blob import Recorded, plain_tree
from flowckpt.core.dsl import NextGeneration, Workflow
from flowckpt.core.identity import inputs_hash
from flowckpt.core.identity.secrets import KnownSecrets
from flowckpt.core.records import CheckpointData
from flowckpt.core.system.attrs_base import FieldEquality, lazy_frozen
from flowckpt.core.system.declared import short_repr, type_name
from flowckpt.core.system.secret import MARK, Secret, absent_secret, is_optional
from flowckpt.errors import (
    DecodingError,
    EncodingError,
    InputError,
    InputMismatchError,
    SecretMissingError,
    WorkflowDefinitionError,
)

_CHECKED = (str, bytes, int, float, bool)


@lazy_frozen(eq=False, repr=False)
class BoundInputs(FieldEquality):
    """Inputs in recorded form, together with the values of the secret ones.

    Attributes:
        tree: the tree of each input, by name.
        hash: the digest of all inputs.
        defaulted: the names that were not given.
        secrets: the secret inputs that have a value, in memory only.
    """

    tree: Mapping[str, Any]
    hash: str
    defaulted: tuple[str, ...]
    secrets: Mapping[str, Secret[Any]] = attrs.field(factory=dict)

    @property
    def recorded(self) -> Recorded:
        """The inputs in the form of a checkpoint."""
        return Recorded(self.tree)

    @property
    def missing(self) -> tuple[str, ...]:
        """The secret inputs that were given at the start and have no value now."""
        return tuple(name for name, tree in self.tree.items() if tree == MARK and name not in self.secrets)

    def known_secrets(self) -> KnownSecrets:
        """Return the secrets of the run, which must not be written or shown."""
        return KnownSecrets(self.secrets.values())

    def values(
        self, workflow: Workflow[Any, Any], *, use_missing: Callable[[str], NoReturn] | None = None
    ) -> dict[str, Any]:
        """Decode the inputs, so that the generator of a new run gets the same values as after a resume.

        Args:
            workflow: the workflow.
            use_missing: called with the name of a secret input if the generator uses it and it has no value.
        """
        use = _refuse_missing if use_missing is None else use_missing
        return {
            name: self.secrets.get(name) or absent_secret(partial(use, name))
            if tree == MARK
            else decode_input(workflow, name, tree)
            for name, tree in self.tree.items()
        }


def decode_input(workflow: Workflow[Any, Any], name: str, tree: Any) -> Any:
    """Decode a recorded input with the annotation that the workflow has now."""
    return codec.decode(tree, workflow.hints.get(name, Any), place=f"input {name}")


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
    tree: dict[str, Any] = {}
    secrets: dict[str, Secret[Any]] = {}
    for name, value in bound.items():
        if name not in workflow.secret_inputs:
            tree[name] = _encode_input(name, value, workflow.hints.get(name, Any))
        elif value is None and is_optional(workflow.hints[name]):
            tree[name] = None
        else:
            secret = _wrap_secret(workflow, name, value)
            tree[name] = dict(MARK)
            if not secret.is_absent:
                secrets[name] = secret
    made = BoundInputs(tree, inputs_hash.digest(tree), tuple(name for name in bound if name not in given), secrets)
    known = made.known_secrets()
    for name, held in tree.items():
        if found := known.place_in(held, name):
            raise InputError(
                f"the input {name!r} contains the value of a secret input at {known.redact(found)}, and would be recorded",
                parameter=name,
                remedy=f"Remove the value there, or annotate the input as a secret: {name}: Secret[…].",
            )
    return made


def bind_next(workflow: Workflow[Any, Any], following: NextGeneration) -> BoundInputs:
    """Bind the inputs of the next generation.

    Their types are checked, too: the run could not return from a generation with a wrong one.

    Args:
        workflow: the workflow.
        following: the value that the workflow returned.

    Raises:
        InputError: one is unknown or missing, or not of its annotated type.
        EncodingError: one cannot be recorded.
    """
    given, place = following.inputs, f"continue_as() at {following.where}"
    try:
        bound = bind_inputs(workflow, given)
        for name in given.keys() - workflow.secret_inputs.keys():
            refuse_unfit(workflow, name, given[name])
    except EncodingError as error:
        raise reword_error(error, f"{place}: {error.message}", error.remedy) from error
    except InputError as error:
        name, is_missing = (
            error.parameter,
            error.parameter in workflow.signature.parameters and error.parameter not in given,
        )
        remedy = f"Pass it on: return continue_as({name}={name}, …)." if is_missing else error.remedy
        raise InputError(f"{place}: {error.message}", parameter=name, remedy=remedy) from error
    return bound


def reword_error(error: EncodingError, message: str, remedy: str) -> EncodingError:
    """Return the same error with another text."""
    return EncodingError(message, place=error.place, type_name=error.type_name, remedy=remedy)


def refuse_unfit(workflow: Workflow[Any, Any], name: str, value: Any) -> None:
    """Refuse an input that does not have its annotated type.

    Raises:
        InputError: the type is wrong.
    """
    annotation = workflow.hints.get(name, Any)
    if value is workflow.signature.parameters[name].default or has_type(value, annotation):
        return  # accept the common `limit: int = None`
    wanted = annotation.__qualname__ if isinstance(annotation, type) else str(annotation)
    raise InputError(
        f"the input {name!r} of workflow {workflow.name!r} must be of type {wanted}, got {short_repr(value)} "
        f"({type_name(type(value))})",
        parameter=name,
        remedy=f"Pass a value of that type, or change the annotation of {name!r}.",
    )


def refuse_output(workflow: Workflow[Any, Any], place: str = "") -> None:
    """Refuse a workflow before its first step if its annotated output type cannot be recorded.

    Args:
        workflow: the workflow.
        place: the step of a child workflow; empty for the run itself.

    Raises:
        EncodingError: a value of its output type cannot be stored.
    """
    cls = find_unstorable(workflow.claimed_output)
    if cls is None:
        return
    place = f"{place}: output" if place else "the workflow's output"
    name = type_name(cls)
    raise EncodingError(
        f"{place} is annotated as {name}, which cannot be stored: {workflow.name} at {workflow.where}",
        place=place,
        type_name=name,
        remedy=tags.remedy_of(cls),
    )


def _encode_input(name: str, value: Any, annotation: Any) -> Any:
    try:
        return codec.encode(value, annotation, place=f"input {name}")
    except EncodingError as error:
        remedy = (
            "Annotate the parameter with the type of the value ('T | None' if it may be None), or register the type "
            "(flowckpt.register_type). Or pass a path or an id, and create the value from it in a step."
        )
        raise reword_error(error, error.message, error.remedy and remedy) from error


def rebind_recorded(workflow: Workflow[Any, Any], latest: CheckpointData, given: Mapping[str, Any]) -> BoundInputs:
    """Bind the inputs of a checkpoint again, as `rebind_inputs` does; it raises the same errors."""
    return rebind_inputs(workflow, _read_recorded(latest), given)


def _read_recorded(latest: CheckpointData) -> BoundInputs:
    tree = plain_tree(latest.held_inputs, "inputs")
    return BoundInputs(tree, latest.inputs_hash, tuple(latest.metadata.get("defaulted", ())))


def rebind_inputs(workflow: Workflow[Any, Any], recorded: BoundInputs, given: Mapping[str, Any]) -> BoundInputs:
    """Bind the inputs of a resume and compare them with the record.

    An input that is not given now is taken from the record. But if inputs are given again, one that was left to its
    default at the start gets its present default, so that a changed default is noticed. A secret input has a value only
    if it is given or has a default; giving only secret inputs does not count as giving inputs again. The inputs stay
    those of the record, without the fields that their classes have gained since.

    Args:
        workflow: the workflow.
        recorded: the inputs of the start.
        given: the inputs given now; may be empty.

    Raises:
        InputMismatchError: inputs differ; the error names them.
        InputError: an input is unknown.
    """
    left_out = set(recorded.defaulted) if given.keys() - workflow.secret_inputs.keys() else set()
    parameters = workflow.signature.parameters
    secret = (name for name in recorded.defaulted if recorded.tree.get(name) == MARK)
    left_out.update(name for name in secret if _has_default(workflow, name))
    values = {
        name: absent_secret(partial(_refuse_missing, name)) if tree == MARK else decode_input(workflow, name, tree)
        for name, tree in recorded.tree.items()
        if name in parameters and name not in given and name not in left_out
    }
    for name, value in values.items():
        if isinstance(value, Secret) and name not in workflow.secret_inputs:
            raise InputMismatchError(
                expected_hash=recorded.hash,
                actual_hash="without it",
                differences={name: ("(hidden)", "an input that is no longer annotated as a secret")},
            )
    bound = bind_inputs(workflow, {**values, **given})
    _refuse_mismatch(workflow, recorded, bound, "" if given else None, {name: bound.tree[name] for name in values})
    return attrs.evolve(recorded, secrets=bound.secrets)


def find_changed_defaults(workflow: Workflow[Any, Any], latest: CheckpointData) -> dict[str, tuple[str, str]]:
    """Return the recorded and the present value of each input that was left to a default which has changed, as texts."""
    recorded, now = _read_recorded(latest), dict[str, Any]()
    for name in recorded.defaulted:
        if name in recorded.tree and name not in workflow.secret_inputs and _has_default(workflow, name):
            with suppress(EncodingError):  # it could not be recorded, and is not used
                now[name] = _encode_input(
                    name, workflow.signature.parameters[name].default, workflow.hints.get(name, Any)
                )
    return inputs_hash.differences(_read_again(workflow, {name: recorded.tree[name] for name in now}), now)


def refuse_other_inputs(workflow: Workflow[Any, Any], bound: BoundInputs, latest: CheckpointData) -> None:
    """Refuse a start whose inputs differ from those of the existing run with its id.

    Raises:
        InputMismatchError: inputs differ; the error names them.
    """
    of_run = (
        f"The id belongs to an earlier run of {workflow.name!r}. Give the inputs of that run, or choose another id."
    )
    _refuse_mismatch(workflow, _read_recorded(latest), bound, of_run)


def _refuse_mismatch(
    workflow: Workflow[Any, Any],
    recorded: BoundInputs,
    bound: BoundInputs,
    remedy: str | None,
    reread: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Refuse inputs that differ from the recorded ones; the default remedy blames a changed signature."""
    if bound.hash == recorded.hash:
        return
    read = _read_again(workflow, recorded.tree, reread)
    if bound.hash != inputs_hash.digest(read) or recorded.hash != inputs_hash.digest(recorded.tree):
        has_same_names = recorded.tree.keys() == bound.tree.keys()
        raise InputMismatchError(
            expected_hash=recorded.hash,
            actual_hash=bound.hash,
            differences=inputs_hash.differences(read, bound.tree),
            remedy=remedy if remedy is not None and has_same_names else _explain_signature(workflow),
        )


def _read_again(
    workflow: Workflow[Any, Any], recorded: Mapping[str, Any], reread: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, Any]:
    """Return recorded inputs as they would be recorded now, since their classes may have gained fields with defaults.

    An input that can no longer be read, or would lose a recorded field, stays as it is, and so differs from any other:
    a model may ignore a recorded field that it no longer has, for example after a field was renamed.

    Args:
        workflow: the workflow.
        recorded: the trees of the inputs, by name.
        reread: those that were already decoded and encoded again: a default may be another each time.
    """
    read = dict(recorded)
    for name, tree in recorded.items():
        if tree != MARK and name in workflow.signature.parameters and name not in workflow.secret_inputs:
            with suppress(DecodingError, EncodingError):
                again = reread[name] if name in reread else _encode_again(workflow, name, tree)
                read[name] = again if inputs_hash.keeps_all(tree, again) else tree
    return read


def _encode_again(workflow: Workflow[Any, Any], name: str, tree: Any) -> Any:
    return _encode_input(name, decode_input(workflow, name, tree), workflow.hints.get(name, Any))


def _explain_signature(workflow: Workflow[Any, Any]) -> str:
    return (
        f"The workflow's parameters have changed since the run was started ({workflow.where}). Restore its parameters "
        "and resume, or start a new run."
    )


def refuse_in_labels(bound: BoundInputs, workflow_id: str, tags: Mapping[str, str]) -> None:
    """Refuse a run whose id or tags contain a secret input: ids and tags are recorded and shown.

    Args:
        bound: the inputs.
        workflow_id: the run id.
        tags: its tags.

    Raises:
        InputError: the id or a tag contains a secret.
    """
    secrets = bound.known_secrets()
    for what, label in (("id", workflow_id), *(("tag", text) for pair in tags.items() for text in pair)):
        if secrets.is_in(label):
            raise InputError(
                f"the {what} of the run contains a secret input: {secrets.redact(label)!r}",
                parameter="workflow_id" if what == "id" else "tags",
                remedy="Ids and tags are recorded and shown: choose another.",
            )


def _has_default(workflow: Workflow[Any, Any], name: str) -> bool:
    parameter = workflow.signature.parameters.get(name)
    return parameter is not None and parameter.default is not parameter.empty


def _refuse_missing(name: str) -> NoReturn:
    raise SecretMissingError((name,))


def _wrap_secret(workflow: Workflow[Any, Any], name: str, value: Any) -> Secret[Any]:
    """Return the value of a secret input as a secret; error messages contain only its type."""
    secret = Secret(value)
    wanted = workflow.secret_inputs[name]
    if secret.is_absent or (wanted not in _CHECKED and secret.reveal() is not None):
        return secret
    kind = type(secret.reveal())
    if kind is wanted or (wanted is float and kind is int) or wanted is Any:
        return secret
    expected = wanted.__name__ if isinstance(wanted, type) else str(wanted)
    raise InputError(
        f"the secret input {name!r} of workflow {workflow.name!r} must be of type {expected}, got a {type_name(kind)}",
        parameter=name,
        remedy=f"Pass a value of that type, or change the annotation: {name}: Secret[…].",
    )


# Checks of the arguments that callers of the engine pass.


def check_id(workflow_id: object) -> str:
    """Return a run id, if it is valid.

    Raises:
        InputError: the id is not text, or blank.
    """
    if not isinstance(workflow_id, str) or not workflow_id.strip():
        raise InputError(
            f"a run id must be text and not blank, got {workflow_id!r:.80} ({type(workflow_id).__name__})",
            parameter="workflow_id",
            remedy="Pass a text, or nothing to get a new id.",
        )
    return workflow_id


def check_workflow(workflow: object) -> None:
    """Refuse an object that is not a workflow.

    Raises:
        WorkflowDefinitionError: the object is not a workflow.
    """
    if not isinstance(workflow, Workflow):
        raise WorkflowDefinitionError(
            f"{workflow!r:.120} is not a workflow",
            remedy="Decorate the generator function with @workflow and pass it uncalled.",
        )


def require_workflow(workflow: Workflow[..., Any] | None, workflow_id: str) -> Workflow[..., Any]:
    """Return the workflow, which callers may omit only if nothing has to be undone.

    Raises:
        InputError: the workflow is missing.
    """
    if workflow is None:
        raise InputError(
            f"undoing the steps of run {workflow_id!r} needs its workflow, which was not given",
            parameter="workflow",
            remedy="Pass workflow=…, or rolls_back=False to end the run without undoing anything.",
        )
    return workflow
