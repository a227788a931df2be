"""Where in a value something was refused: looked for only then, so that encoding itself carries no places about."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from typing import Any

from flowckpt.errors import EncodingError, type_name
from flowckpt.secret import Secret

CONTAINERS = frozenset({list, dict, tuple, set, frozenset})


class RefusedError(Exception):
    """A value is not of the closed set. Its text says why, where the type alone does not."""


def refusal(
    value: Any, place: str, *, reason: Callable[[Any], str | None], inside: Callable[[Any], Any], max_depth: int
) -> EncodingError:
    """Return the error that names the first thing in a value that cannot be recorded.

    Args:
        value: the value that was refused.
        place: what to call it.
        reason: says why something that is no container is refused; None where it is not.
        inside: takes a value of a registered type apart; gives others back as they are.
        max_depth: how deep a value may be.
    """
    for where, found in _walk(value, place, 0, inside, max_depth, set()):
        if type(found) not in CONTAINERS and (why := reason(found)) is not None:
            return _refusal_of(found, where, why)
    return EncodingError(
        f"{place} is nested more than {max_depth} deep, or contains itself",
        place=place,
        type_name=type_name(type(value)),
        remedy="Return a flatter value, or write it to a file and return the path.",
    )


def _walk(
    value: Any, place: str, depth: int, inside: Callable[[Any], Any], max_depth: int, seen: set[int]
) -> Iterator[tuple[str, Any]]:
    """Yield what is in a value, innermost things before what holds them; each container once, as it may hold itself."""
    opened = inside(value)
    if type(opened) in CONTAINERS and id(value) not in seen and depth < max_depth:
        seen.add(id(value))
        for step, item in _items(opened, place):
            yield from _walk(item, step, depth + 1, inside, max_depth, seen)
    yield place, value


def _items(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    if type(value) is dict:
        for key, item in value.items():
            yield f"key {shown(key)} of {place}", key
            yield place + (f".{key}" if type(key) is str and key.isidentifier() else f"[{shown(key)}]"), item
    elif type(value) in (list, tuple):
        for index, item in enumerate(value):
            yield f"{place}[{index}]", item
    else:
        for item in value:
            yield f"{place}{{…}}", item


def shown(value: object) -> str:
    """Write a value for an error, shortly, also where its own `__repr__` fails: there is a better error to tell."""
    try:
        return f"{value!r:.60}"
    except Exception:
        return f"<{type_name(type(value))}>"


def _refusal_of(found: Any, place: str, why: str) -> EncodingError:
    name = type_name(type(found))
    if isinstance(found, Secret):
        return EncodingError(
            f"{place} is a secret, and secrets are never recorded: mark a step that returns one .secret(), and annotate a "
            "whole input, as 'token: Secret[str]'",
            place=place,
            type_name=name,
        )
    if isinstance(found, Generator | AsyncGenerator):
        return EncodingError(
            f"{place} is a {name}, and a generator that has begun cannot be recorded",
            place=place,
            type_name=name,
            remedy="Return a list of what it yields. A generator function that yields steps is a workflow: decorate it with "
            "@workflow, and run it by .workflow(child) or .map(child, items). Or mark the step .ephemeral().",
        )
    return EncodingError(
        f"{place} is a {name}, which cannot be recorded so that it comes back the same{why and f': {why}'}",
        place=place,
        type_name=name,
        remedy="Annotate its type (what a step's function returns; for a workflow Generator[Any, Any, T]), register it "
        "(flowckpt.codec.register), or mark the step .ephemeral().",
    )
