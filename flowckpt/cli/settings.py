"""Where options come from that are not on the command line: the environment, then `pyproject.toml`, then the default."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import click

from flowckpt.stores.opening import shown_spec

DEFAULT_DIRECTORY = ".flowckpt"
STORE_VARIABLE = "FLOWCKPT_STORE"
KEY_FILE_VARIABLE = "FLOWCKPT_KEY_FILE"
COMPRESSION_VARIABLE = "FLOWCKPT_COMPRESSION"

_KEYS: dict[str, type] = {"store": str, "color": bool, "key_file": str, "compression": str}
_TYPE_NAMES = {str: "text", bool: "true or false"}
_SCHEMES_OF_PATHS = ("file", "sqlite")


@attrs.frozen
class StoreChoice:
    """The store that a command works on.

    Attributes:
        spec: its description, with an absolute path, so that a step that changes the directory changes nothing.
        given: what stands on the command line, where the next command would not find the same store without it.
        key_file: the file with its keys, as an absolute path; None for none.
        compression: how it packs what it writes.
    """

    spec: str
    given: str = ""
    key_file: str | None = None
    compression: str = "none"

    @property
    def shown(self) -> str:
        """The description as it may be shown: without a password."""
        return shown_spec(self.spec)


def choose_store(
    option: str | None, environ: Mapping[str, str] | None = None, directory: Path | None = None
) -> StoreChoice:
    """Return the store to work on.

    Args:
        option: what the command line says, or None.
        environ: the environment; the process's own where not given.
        directory: where to look from; the working directory where not given.

    Raises:
        click.UsageError: `pyproject.toml` says something that cannot be.
    """
    environ = os.environ if environ is None else environ
    directory = Path.cwd() if directory is None else directory
    if not option:
        return StoreChoice(_found_store(environ, directory), "", *_protection(environ, directory))
    spec = _absolute(option, directory)
    try:
        is_found_again = spec == _found_store(environ, directory)
    except click.UsageError:
        is_found_again = False
    return StoreChoice(spec, "" if is_found_again else option, *_protection(environ, directory))


def color_allowed(environ: Mapping[str, str] | None = None, directory: Path | None = None) -> bool:
    """Tell whether terminals may be drawn on, as far as the command line does not say.

    Args:
        environ: the environment; the process's own where not given.
        directory: where to look from; the working directory where not given.

    Raises:
        click.UsageError: `pyproject.toml` says something that cannot be.
    """
    environ = os.environ if environ is None else environ
    if environ.get("NO_COLOR") or environ.get("TERM") == "dumb":
        return False
    configured, _ = _configured(Path.cwd() if directory is None else directory)
    return bool(configured.get("color", True))


def _found_store(environ: Mapping[str, str], directory: Path) -> str:
    if named := environ.get(STORE_VARIABLE):
        return _absolute(named, directory)
    configured, file = _configured(directory)
    if "store" in configured:
        return _absolute(str(configured["store"]), file.parent)
    for candidate in (directory, *directory.parents):
        if (candidate / DEFAULT_DIRECTORY).is_dir():
            return f"file:{candidate / DEFAULT_DIRECTORY}"
    return f"file:{directory / DEFAULT_DIRECTORY}"


def _protection(environ: Mapping[str, str], directory: Path) -> tuple[str | None, str]:
    """Return the key file, absolute, and the compression."""
    configured, file = _configured(directory)
    key_file = None
    if named := environ.get(KEY_FILE_VARIABLE):
        key_file = os.path.normpath(directory / Path(named).expanduser())
    elif "key_file" in configured:
        key_file = os.path.normpath(file.parent / Path(str(configured["key_file"])).expanduser())
    return key_file, environ.get(COMPRESSION_VARIABLE) or str(configured.get("compression", "none"))


def _absolute(spec: str, directory: Path) -> str:
    scheme, colon, rest = spec.partition(":")
    if colon and scheme in _SCHEMES_OF_PATHS:
        return f"{scheme}:{Path(os.path.normpath(directory / (rest or DEFAULT_DIRECTORY)))}"
    return spec


def _configured(directory: Path) -> tuple[Mapping[str, Any], Path]:
    """Return `[tool.flowckpt]` of the nearest `pyproject.toml`, checked, and that file."""
    for candidate in (directory, *directory.parents):
        file = candidate / "pyproject.toml"
        try:
            text = file.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise click.UsageError(f"{file} cannot be read: {error.strerror}") from error
        return (_parsed(text, file) if b"flowckpt" in text else {}), file
    return {}, directory / "pyproject.toml"


def _parsed(text: bytes, file: Path) -> Mapping[str, Any]:
    try:
        document = tomllib.loads(text.decode())
    except ValueError as error:  # bad TOML, or no UTF-8
        raise click.UsageError(f"{file} is no valid TOML: {error}") from error
    tools = document.get("tool", {})
    table = tools.get("flowckpt", {}) if isinstance(tools, dict) else {}
    if not isinstance(table, dict):
        raise click.UsageError(f"{file}: tool.flowckpt must be a table, got {table!r:.80}")
    for key, value in table.items():
        kind = _KEYS.get(key)
        if kind is None:
            raise click.UsageError(f"{file}: tool.flowckpt.{key} is no setting; the settings are {', '.join(_KEYS)}")
        if type(value) is not kind or value == "":
            raise click.UsageError(f"{file}: tool.flowckpt.{key} must be {_TYPE_NAMES[kind]}, got {value!r:.80}")
    return table
