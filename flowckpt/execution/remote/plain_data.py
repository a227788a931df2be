"""What a worker sends, read: numbers, texts and containers; nothing is built here that a worker chose."""

from __future__ import annotations

import io
import pickle
from typing import Any


def read_plain(message: bytes) -> Any:
    """Return plain data.

    Args:
        message: pickled.

    Raises:
        ValueError: there is a class or a function in it.
        pickle.UnpicklingError: it is not pickled data.
    """
    return _PlainData(io.BytesIO(message)).load()


class _PlainData(pickle.Unpickler):
    def find_class(self, module: str, name: str, /) -> Any:
        raise ValueError(f"a worker answered with a {module}.{name}")
