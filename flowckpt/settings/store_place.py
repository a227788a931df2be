"""Where the runs are, when only a directory is known."""

from __future__ import annotations

import os
from pathlib import Path

DEFAULT_DIRECTORY = ".flowckpt"
_SCHEMES_OF_PATHS = {"file": DEFAULT_DIRECTORY, "sqlite": f"{DEFAULT_DIRECTORY}.db"}


def absolute_spec(spec: str, directory: Path) -> str:
    """Return the description of a store with an absolute path, where it has one.

    Args:
        spec: the description.
        directory: what a relative path is relative to.
    """
    scheme, colon, rest = spec.partition(":")
    if colon and scheme in _SCHEMES_OF_PATHS:
        return f"{scheme}:{Path(os.path.normpath(directory / (rest or _SCHEMES_OF_PATHS[scheme])))}"
    return spec


def nearest_store(directory: Path) -> str:
    """Return the description of the default store.

    Args:
        directory: where to look from.
    """
    for candidate in (directory, *directory.parents):
        place = candidate / DEFAULT_DIRECTORY
        # A link to nothing is a disk that is not mounted, and no store that is not there yet.
        if place.is_dir() or place.is_symlink():
            return f"file:{place}"
    return f"file:{directory / DEFAULT_DIRECTORY}"
