"""`[tool.flowckpt]` of the nearest `pyproject.toml`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowckpt.errors import SettingError
from flowckpt.lazy import LazyModule

if TYPE_CHECKING:
    import tomllib
else:  # most directories say nothing of flowckpt
    tomllib = LazyModule("tomllib")

FILE_NAME = "pyproject.toml"
TABLE = "tool.flowckpt"


def nearest_table(directory: Path) -> tuple[Mapping[str, Any], Path | None]:
    """Return the table and the file it stands in; an empty one and None where the nearest file has none.

    Args:
        directory: where to look from, upwards.

    Raises:
        SettingError: the file cannot be read, is no TOML, or holds something else than a table.
    """
    for candidate in (directory, *directory.parents):
        file = candidate / FILE_NAME
        try:
            text = file.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise SettingError(f"{file} cannot be read: {error.strerror}", source=str(file)) from error
        # A file that does not even name us may be as broken as it likes.
        return _table(text, file) if b"flowckpt" in text else ({}, None)
    return {}, None


def _table(text: bytes, file: Path) -> tuple[Mapping[str, Any], Path | None]:
    try:
        document = tomllib.loads(text.decode())
    except ValueError as error:  # bad TOML, or no UTF-8
        raise SettingError(f"{file} is no valid TOML: {error}", source=str(file)) from error
    tools = document.get("tool", {})
    if not isinstance(tools, dict) or "flowckpt" not in tools:
        return {}, None
    table = tools["flowckpt"]
    if not isinstance(table, dict):
        raise SettingError(f"{file}: {TABLE} must be a table, got {table!r:.80}", source=str(file))
    return table, file
