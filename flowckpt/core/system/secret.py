"""A value that is used but never shown: the type of inputs annotated `Secret[str]`.

The wrapper prevents accidental leaks: in logs, f-strings, tracebacks with locals, error messages, arguments of steps.
`reveal()` returns the plain value, which is no longer protected.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable
from typing import Any, Generic, NoReturn, TypeVar, final

T_co = TypeVar("T_co", covariant=True)

HIDDEN = "(hidden)"
MARK = {"$secret": True}
"""The record of a secret, which contains nothing of its value."""


@final
class Secret(Generic[T_co]):
    """A value that does not print itself: its text, its `repr` and f-strings show `(hidden)`.

    An input annotated `Secret[str]`, or `Secret[str] | None`, is secret: its value is never recorded, logged or shown.
    Two secrets are equal if their values are. `copy` and `pickle` keep the value, for steps in other processes.

    Args:
        value: the value; for a secret, its value.
    """

    __slots__ = ("_absent", "_value")

    def __init__(self, value: T_co | Secret[T_co]) -> None:
        self._value: Any = value._value if isinstance(value, Secret) else value
        self._absent: Callable[[], NoReturn] | None = value._absent if isinstance(value, Secret) else None

    def reveal(self) -> T_co:
        """Return the value.

        Raises:
            SecretMissingError: the secret comes from a record, which does not contain its value.
        """
        if self._absent is not None:
            self._absent()
        value: T_co = self._value
        return value

    @property
    def is_absent(self) -> bool:
        """Whether the value is missing because the secret comes from a record."""
        return self._absent is not None

    def __repr__(self) -> str:
        return f"Secret{HIDDEN}"

    def __str__(self) -> str:
        return HIDDEN

    def __format__(self, spec: str) -> str:
        return HIDDEN

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return bool(self.reveal() == other.reveal()) if isinstance(other, Secret) else NotImplemented

    def __hash__(self) -> int:
        return hash((Secret, self.reveal()))

    def __reduce__(self) -> tuple[Any, ...]:
        return Secret, (self.reveal(),)  # for steps in other processes; a record holds no pickles

    def __copy__(self) -> Secret[T_co]:
        return self

    def __deepcopy__(self, memo: Any) -> Secret[T_co]:
        return self


def absent_secret(raise_missing: Callable[[], NoReturn]) -> Secret[Any]:
    """Return a secret without its value: it can be passed on but not used.

    Args:
        raise_missing: called on use; raises the error.
    """
    secret: Secret[Any] = Secret(None)
    secret._absent = raise_missing
    return secret


NOT_SECRET = object()
"""Returned by `secret_type` for any other annotation."""


def secret_type(annotation: Any) -> Any:
    """Return the type inside a secret's annotation: `str` for `Secret[str]` and `Secret[str] | None`.

    Returns:
        The inner annotation, `Any` for a bare `Secret`, and `NOT_SECRET` for any other annotation.
    """
    if annotation is Secret:
        return Any
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Secret:
        return arguments[0]
    if origin in (typing.Annotated, typing.Final):
        return secret_type(arguments[0])
    if origin in (typing.Union, types.UnionType):
        for member in arguments:
            if (found := secret_type(member)) is not NOT_SECRET:
                return found
    if (aliased := getattr(annotation, "__value__", None)) is not None and type(annotation).__name__ == "TypeAliasType":
        return secret_type(aliased)
    return NOT_SECRET


def is_optional(annotation: Any) -> bool:
    """Return whether an annotation allows None or a secret."""
    if typing.get_origin(annotation) in (typing.Annotated, typing.Final):
        return is_optional(typing.get_args(annotation)[0])
    return typing.get_origin(annotation) in (typing.Union, types.UnionType) and type(None) in typing.get_args(
        annotation
    )
