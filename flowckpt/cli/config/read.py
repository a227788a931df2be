"""Reading the settings: the environment goes before `pyproject.toml`, and that before the default."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from flowckpt.cli.config.kinds import Choice
from flowckpt.cli.config.kinds import PathKind as FilePath
from flowckpt.cli.config.settings import SETTINGS, Setting, absolute_spec, nearest_store
from flowckpt.core.system.lazy import LazyModule
from flowckpt.errors import SettingError

if TYPE_CHECKING:
    import difflib
    import tomllib
else:
    tomllib = LazyModule("tomllib")
    difflib = LazyModule("difflib")


# `[tool.flowckpt]` of the nearest `pyproject.toml`.


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


_PREFIX = "FLOWCKPT_"
_SECRETS = "FLOWCKPT_SECRET_"
"""Secret inputs, by name: no settings."""


class Source(StrEnum):
    """Where a value comes from."""

    ENVIRONMENT = "environment"
    PYPROJECT = "pyproject.toml"
    DEFAULT = "default"


@attrs.frozen
class Found:
    """The value of a setting.

    Attributes:
        setting: what it is the value of.
        value: the value; None where nobody says one and there is no default.
        source: where it comes from.
        place: the environment variable, or the file; empty for a default.
    """

    setting: Setting
    value: Any
    source: Source = Source.DEFAULT
    place: str = ""


@attrs.frozen
class Settings:
    """All settings, each with its value.

    Attributes:
        found: the values, by the name of the setting.
        file: the `pyproject.toml` that has a table for us, or None.
    """

    found: Mapping[str, Found]
    file: Path | None = None

    def __getitem__(self, name: str) -> Any:
        """Return the value of a setting."""
        return self.found[name].value


def read_settings(environ: Mapping[str, str] | None = None, directory: Path | None = None) -> Settings:
    """Return all settings. Every one is checked, also those that nobody asks for.

    Args:
        environ: the environment; the process's own where not given.
        directory: where to look from; the working directory where not given.

    Raises:
        SettingError: a key is unknown, or a value cannot be; it names the variable, or the file and the key.
    """
    environ = os.environ if environ is None else environ
    directory = Path.cwd() if directory is None else directory
    table, file = nearest_table(directory)
    for key in table:
        if key not in SETTINGS:
            raise SettingError(
                f"{file}: {TABLE}.{key} is no setting",
                setting=key,
                source=str(file),
                remedy=_nearest(key, SETTINGS, "the settings are"),
            )
    # The file is checked whole, also where the environment goes before it.
    written = {key: _of_file(SETTINGS[key], value, file) for key, value in table.items() if file is not None}
    return Settings({name: _found(setting, environ, written, directory) for name, setting in SETTINGS.items()}, file)


def unknown_variables(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables that look like settings and are none, each with a word on what may be meant.

    Args:
        environ: the environment; the process's own where not given.
    """
    environ = os.environ if environ is None else environ
    known = [setting.variable for setting in SETTINGS.values()]
    ours = (name for name in environ if name.startswith(_PREFIX) and not name.startswith(_SECRETS))
    found = sorted(name for name in ours if name not in known)
    return {name: _nearest(name, known, "") for name in found}


def _found(setting: Setting, environ: Mapping[str, str], written: Mapping[str, Found], directory: Path) -> Found:
    if setting.name == "color" and (forbidding := _forbidding_color(environ)):
        return Found(setting, False, Source.ENVIRONMENT, forbidding)
    if text := environ.get(setting.variable):
        try:
            value = setting.kind.from_text(text)
        except ValueError:
            raise _refusal(setting, text, setting.variable, setting.variable) from None
        return Found(setting, _placed(setting, value, directory), Source.ENVIRONMENT, setting.variable)
    if setting.name in written:
        return written[setting.name]
    return Found(setting, nearest_store(directory) if setting.name == "store" else setting.default)


def _of_file(setting: Setting, value: object, file: Path) -> Found:
    try:
        checked = setting.kind.from_toml(value)
    except ValueError:
        raise _refusal(setting, value, f"{file}: {TABLE}.{setting.name}", str(file)) from None
    return Found(setting, _placed(setting, checked, file.parent), Source.PYPROJECT, str(file))


def _placed(setting: Setting, value: Any, directory: Path) -> Any:
    if isinstance(setting.kind, FilePath):
        return os.path.normpath(directory / Path(value).expanduser())
    return absolute_spec(value, directory) if setting.name == "store" else value


def _forbidding_color(environ: Mapping[str, str]) -> str:
    if environ.get("NO_COLOR"):
        return "NO_COLOR"
    return "TERM" if environ.get("TERM") == "dumb" else ""


def _refusal(setting: Setting, value: object, where: str, source: str) -> SettingError:
    options = setting.kind.options if isinstance(setting.kind, Choice) else ()
    return SettingError(
        f"{where} must be {setting.kind.said}, got {value!r:.80}",
        setting=setting.name,
        source=source,
        remedy=_nearest(value, options, "") if isinstance(value, str) else "",
    )


def _nearest(name: str, known: Collection[str], otherwise: str) -> str:
    close = difflib.get_close_matches(name.replace("-", "_"), known, n=1)
    if close:
        return f"Did you mean {close[0]}?"
    return f"{otherwise.capitalize()} {', '.join(known)}." if otherwise else ""
