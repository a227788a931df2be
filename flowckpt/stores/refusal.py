"""The refusal of what no record can hold."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from flowckpt.errors import EncodingError


def refusal_of_field(error: Exception) -> EncodingError:
    """Return the error for a field that JSON or UTF-8 cannot hold (a lone surrogate).

    Args:
        error: what Python says: a `TypeError`, a `ValueError` or a `RecursionError`.
    """
    return EncodingError(
        f"a field of the checkpoint cannot be recorded: {error}", place="checkpoint", remedy="Give it as text."
    )


@contextmanager
def refused_as_encoding_error() -> Iterator[None]:
    """Turn what Python says of a field that JSON or UTF-8 cannot hold (a lone surrogate) into `EncodingError`."""
    try:
        yield
    except (TypeError, ValueError, RecursionError) as error:
        raise refusal_of_field(error) from error
