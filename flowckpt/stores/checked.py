"""Whether what was given as a store is one, told before anything is run or saved."""

from __future__ import annotations

from typing import TypeVar

from flowckpt.errors import SettingError

S = TypeVar("S")

_METHODS = ("save", "load", "load_latest", "clear", "list_checkpoints")


def check_store(store: S, setting: str) -> S:
    """Return what was given as a store, or refuse it: a description of one, a class, what lacks one of the five methods.

    Args:
        store: what was given.
        setting: the argument's name, for the error.

    Raises:
        SettingError: it is none.
    """
    if not isinstance(store, type) and all(callable(getattr(store, name, None)) for name in _METHODS):
        return store
    way = "Give a FileCheckpointStore(…), a MemoryCheckpointStore() or open_store(…)"
    if isinstance(store, str):
        way = f"Open it first: open_store({store!r:.80})"
    raise SettingError(
        f"{setting}={store!r:.80} ({type(store).__name__}) is no store",
        setting=setting,
        remedy=f"{way}; one of your own has the methods {', '.join(_METHODS)}.",
    )
