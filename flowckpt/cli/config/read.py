"""Reading the settings, and deciding whose files to trust.

The environment takes precedence over `pyproject.toml`, and that over the default. The list of trusted paths,
`safe_stores`, is read only from the user's own file and environment: a `pyproject.toml` found upwards may be another
user's, so it cannot extend the list.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

import attrs

from flowckpt.cli.config.settings import (
    SETTINGS,
    TABLES,
    Choice,
    Databases,
    FilePath,
    Mirror,
    Setting,
    find_nearest_store,
    make_spec_absolute,
)
from flowckpt.cli.groups import find_near_words
from flowckpt.core.system import external
from flowckpt.core.system.attrs_base import FieldEquality
from flowckpt.core.system.filesystem import why_untrusted
from flowckpt.errors import SettingError, UntrustedStoreError

# `[tool.flowckpt]` of the nearest `pyproject.toml`.


FILE_NAME = "pyproject.toml"
TABLE = "tool.flowckpt"


def find_table(directory: Path) -> tuple[Mapping[str, Any], Path | None]:
    """Return the table and its file; an empty table and None if the nearest file has none.

    Args:
        directory: the directory from which to search upwards.

    Raises:
        SettingError: the file cannot be read, is not TOML, or holds something other than a table.
        UntrustedStoreError: another user can change the file.
    """
    for candidate in (directory, *directory.parents):
        file = candidate / FILE_NAME
        if (text := _read_file(file)) is None:
            continue
        # A file that does not mention flowckpt may be invalid.
        table, source = _find_table(text, file) if b"flowckpt" in text else ({}, None)
        if source is not None:
            _check(source, directory=directory)
        return table, source
    return {}, None


def _setting_error(file: Path | str | None, problem: str, key: str = "", remedy: str = "") -> SettingError:
    """Return the error of a file of settings, or of a variable; its message is the name followed by `said`."""
    return SettingError(f"{file}{problem}", setting=key, source=str(file), remedy=remedy)


def _read_file(file: Path) -> bytes | None:
    """Return the bytes of a file of settings; None if it does not exist."""
    try:
        return file.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _setting_error(file, f" cannot be read: {error.strerror}") from error


def _parse_file(text: bytes, file: Path) -> dict[str, Any]:
    try:
        return parse_toml(text)
    except ValueError as error:  # bad TOML, or no UTF-8
        raise _setting_error(file, f" is not valid TOML: {error}") from error


def parse_toml(text: bytes) -> dict[str, Any]:
    """Return a TOML document.

    Raises:
        ValueError: it is not valid TOML, or not UTF-8.
    """
    return external.tomllib.loads(text.decode())


def _find_table(text: bytes, file: Path) -> tuple[Mapping[str, Any], Path | None]:
    tools = _parse_file(text, file).get("tool", {})
    if not isinstance(tools, dict) or "flowckpt" not in tools:
        return {}, None
    table = tools["flowckpt"]
    if not isinstance(table, dict):
        raise _setting_error(file, f": {TABLE} must be a table, got {table!r:.80}")
    return table, file


_PREFIX = "FLOWCKPT_"
PREFIX_OF_INPUTS = "FLOWCKPT_SECRET_"
"""Variables with this prefix are secret inputs, not settings."""

variables_of_inputs: set[str] = set()
"""Other variables from which this process has read secret inputs, named by `@env:NAME`."""


class Source(StrEnum):
    """The source of a value."""

    ENVIRONMENT = "environment"
    PYPROJECT = "pyproject.toml"
    DEFAULT = "default"


@attrs.frozen(eq=False, repr=False)
class SettingValue(FieldEquality):
    """The value of a setting.

    Attributes:
        setting: the setting.
        value: its value; None if it is neither set nor has a default.
        source: the source of the value.
        place: the environment variable, or the file; empty for a default.
    """

    setting: Setting
    value: Any
    source: Source = Source.DEFAULT
    place: str = ""


@attrs.frozen(eq=False, repr=False)
class Settings(FieldEquality):
    """All settings, each with its value.

    Attributes:
        entries: the values, by the name of the setting.
        file: the `pyproject.toml` with a table for flowckpt, or None.
    """

    entries: Mapping[str, SettingValue]
    file: Path | None = None

    def __getitem__(self, name: str) -> Any:
        """Return the value of a setting."""
        return self.entries[name].value


def read_settings(environ: Mapping[str, str] | None = None, directory: Path | None = None) -> Settings:
    """Return all settings. All of them are checked, even unused ones.

    Args:
        environ: the environment; that of the process by default.
        directory: the directory from which to search upwards; the working directory by default.

    Raises:
        SettingError: a key is unknown, or a value is invalid; it names the variable, or the file and the key.
    """
    environ = os.environ if environ is None else environ
    directory = Path.cwd() if directory is None else directory
    table, file = find_table(directory)
    table = _flatten_table(table, file)
    for key in table:
        if key == SAFE_STORES:
            remedy = f"Set {key} in {user_file(environ)}, or {_SAFE_VARIABLE}."
            raise _setting_error(file, f": {TABLE}.{key} would let a project trust itself", key, remedy)
        if key not in SETTINGS:
            remedy = _suggest_name(key, SETTINGS, "the settings are")
            raise _setting_error(file, f": {TABLE}.{key} is not a setting", key, remedy)
    # The whole file is checked, even keys that the environment overrides.
    written = {key: _convert_entry(SETTINGS[key], value, file) for key, value in table.items() if file is not None}
    return Settings(
        {name: _find_value(setting, environ, written, directory) for name, setting in SETTINGS.items()}, file
    )


def _flatten_table(table: Mapping[str, Any], file: Path | None) -> dict[str, Any]:
    """Return a table with the keys of its inner tables as `table.key`."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if key not in TABLES:
            flat[key] = value
        elif isinstance(value, dict):
            flat |= {f"{key}.{inner}": each for inner, each in value.items()}
        else:
            remedy = f"Write its keys under [{TABLE}.{key}]."
            raise _setting_error(file, f": {TABLE}.{key} must be a table, got {value!r:.80}", key, remedy)
    return flat


def find_unknown_variables(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables that look like settings but are not, each with a suggestion.

    Args:
        environ: the environment; that of the process by default.
    """
    environ = os.environ if environ is None else environ
    known = [*(setting.variable for setting in SETTINGS.values()), _SAFE_VARIABLE]
    if "FLOWCKPT_HOOK" in environ:  # in a hook, such variables describe its event
        return {}
    ours = (name for name in environ if name.startswith(_PREFIX) and not name.startswith(PREFIX_OF_INPUTS))
    unknown = sorted(name for name in ours if name not in known)
    return {name: _suggest_name(name, known, "") for name in unknown}


def _find_value(
    setting: Setting, environ: Mapping[str, str], written: Mapping[str, SettingValue], directory: Path
) -> SettingValue:
    if setting.name == "color" and (variable := _find_color_off_variable(environ)):
        return SettingValue(setting, False, Source.ENVIRONMENT, variable)
    text = environ.get(setting.variable)
    if text or (text is not None and isinstance(setting.kind, Mirror)):
        try:
            value = setting.kind.from_text(text)
        except ValueError:
            raise _value_error(setting, text, setting.variable, setting.variable) from None
        return SettingValue(setting, _resolve_paths(setting, value, directory), Source.ENVIRONMENT, setting.variable)
    if setting.name in written:
        return written[setting.name]
    return SettingValue(setting, find_nearest_store(directory) if setting.name == "store" else setting.default)


def _convert_entry(setting: Setting, value: object, file: Path) -> SettingValue:
    try:
        checked = setting.kind.from_toml(value)
    except ValueError:
        raise _value_error(setting, value, f"{file}: {TABLE}.{setting.name}", str(file)) from None
    return SettingValue(setting, _resolve_paths(setting, checked, file.parent), Source.PYPROJECT, str(file))


def _resolve_paths(setting: Setting, value: Any, directory: Path) -> Any:
    """Return a value with its relative paths made absolute."""
    if isinstance(setting.kind, FilePath):
        return os.path.normpath(directory / Path(value).expanduser())
    if isinstance(setting.kind, Databases):
        return {name: make_spec_absolute(spec, directory) for name, spec in value.items()}
    return make_spec_absolute(value, directory) if setting.name in ("store", "mirror") and value else value


def _find_color_off_variable(environ: Mapping[str, str]) -> str:
    if environ.get("NO_COLOR"):
        return "NO_COLOR"
    return "TERM" if environ.get("TERM") == "dumb" else ""


def _value_error(setting: Setting, value: object, where: str, source: str) -> SettingError:
    options = setting.kind.options if isinstance(setting.kind, Choice) else ()
    return SettingError(
        f"{where} must be {setting.kind.expected}, got {value!r:.80}",
        setting=setting.name,
        source=source,
        remedy=_suggest_name(value, options, "") if isinstance(value, str) else "",
    )


def _suggest_name(name: str, known: Collection[str], otherwise: str) -> str:
    close = find_near_words(name.replace("-", "_"), known)
    if close:
        return f"Did you mean {close[0]}?"
    return f"{otherwise.capitalize()} {', '.join(known)}." if otherwise else ""


# Trust: stores, settings and programs must not be writable by other users, unless the user lists them.

SAFE_STORES = "safe_stores"
_SAFE_VARIABLE = "FLOWCKPT_SAFE_STORES"
_SQLITE_FILES = ("-wal", "-shm", "-journal")


def user_file(environ: Mapping[str, str] | None = None) -> Path:
    """Return the file of the user's own settings, which may not exist."""
    environ = os.environ if environ is None else environ
    home = environ.get("XDG_CONFIG_HOME", "")
    return (Path(home) if Path(home).is_absolute() else Path("~/.config").expanduser()) / "flowckpt" / "config.toml"


def check_store(spec: str) -> None:
    """Refuse a store whose records another user can change, because records decide which code runs.

    Args:
        spec: the store's specification, with an absolute path. Stores that are not files are accepted.

    Raises:
        UntrustedStoreError: another user can change the store, or a directory between it and the working directory.
        SettingError: the user's own settings are invalid.
    """
    scheme, _, rest = spec.partition(":")
    if scheme == "file":
        path = Path(rest).absolute()
        _check(path, path / "runs")
    elif scheme == "sqlite":
        path = Path(rest).absolute()
        _check(path, *(path.with_name(f"{path.name}{suffix}") for suffix in _SQLITE_FILES))
    elif scheme == "objects+file":
        _check(Path(rest.removeprefix("//")).absolute())


def check_program(described: Mapping[str, str]) -> None:
    """Refuse the program that a record names if another user can change it.

    Args:
        described: the recorded place of the program.

    Raises:
        UntrustedStoreError: another user can change the file or its directory.
        SettingError: the user's own settings are invalid.
    """
    if file := described.get("file"):
        _check(Path(file).absolute())
    if cwd := described.get("cwd"):
        _check(Path(cwd).absolute(), is_on_the_way=True)


def _check(path: Path, *parts: Path, directory: Path | None = None, is_on_the_way: bool = False) -> None:
    """Refuse a file or directory that another user can change, unless the user's own settings list it.

    Args:
        path: the file or directory, absolute.
        *parts: files that belong to it.
        directory: the working directory; that of the process by default.
        is_on_the_way: whether only an entry of it is used, see `why_untrusted`.

    Raises:
        UntrustedStoreError: another user can change it, or a directory between it and the working directory.
        SettingError: the user's own settings are invalid.
    """
    directory = Path.cwd() if directory is None else directory
    safe: Sequence[Path] | None = None
    for place, reason in _find_untrusted_places(path, *parts, directory=directory, is_on_the_way=is_on_the_way):
        safe = _read_safe_stores() if safe is None else safe
        if not any(each.resolve().is_relative_to(listed) for each in (path, place) for listed in safe):
            raise UntrustedStoreError(str(path), reason=f"{place} {reason}")


def _read_safe_stores() -> list[Path]:
    """Return the paths that the user trusts, each with everything below it."""
    paths = [
        _parse_safe_path(each, _SAFE_VARIABLE) for each in os.environ.get(_SAFE_VARIABLE, "").split(os.pathsep) if each
    ]
    return [*paths, *_read_user_file(user_file())]


def _read_user_file(file: Path) -> list[Path]:
    if (text := _read_file(file)) is None:
        return []
    for place, reason in _find_untrusted_places(file, directory=file.parent):
        remedy = "Make yourself its owner, and remove write access for others: chmod go-w."
        raise _setting_error(file, f" cannot be trusted: {place} {reason}", remedy=remedy)
    document = _parse_file(text, file)
    if unknown := sorted({*document} - {SAFE_STORES}):
        raise _setting_error(file, f": unknown setting {unknown[0]!r}", unknown[0], f"Write {SAFE_STORES}.")
    listed = document.get(SAFE_STORES, [])
    if not isinstance(listed, list):
        raise _setting_error(file, f": {SAFE_STORES} must be a list of paths, got {listed!r:.80}", SAFE_STORES)
    return [_parse_safe_path(each, str(file)) for each in listed]


def _parse_safe_path(value: object, source: str) -> Path:
    path = Path(value).expanduser() if isinstance(value, str) and value else None
    if path is None or not path.is_absolute():
        raise _setting_error(source, f": each path of {SAFE_STORES} must be absolute, got {value!r:.80}", SAFE_STORES)
    return path.resolve()


def _find_untrusted_places(
    path: Path, *parts: Path, directory: Path, is_on_the_way: bool = False
) -> Iterator[tuple[Path, str]]:
    """Yield each place through which another user can change a file, with the reason; the file itself first.

    Args:
        path: the file or directory, absolute; it need not exist.
        *parts: files that belong to it.
        directory: the working directory. The directories between it and `path` count.
        is_on_the_way: whether only an entry of `path` is used, see `why_untrusted`.
    """
    uid = os.geteuid()
    ways = dict.fromkeys(way for each in (path, path.resolve()) for way in _walk_between(each, directory))
    own = (path, path.resolve(), *parts)
    for place in dict.fromkeys((*own, *ways)):
        with contextlib.suppress(OSError):  # a place without a readable status cannot be opened either
            status = place.lstat()
            mode = _mode_without_private_group(place, status)
            if reason := why_untrusted(status.st_uid, mode, uid, is_on_the_way=is_on_the_way or place not in own):
                yield place, reason


def _walk_between(path: Path, directory: Path) -> Iterator[Path]:
    """Yield the directories from a path up to the first one that contains the working directory.

    If `path` was found by searching upwards, yield its directory and those down to the working directory.
    """
    top = Path(os.path.commonpath((path.parent, directory)))
    for lower in (path.parent, *([directory] if top == path.parent else [])):
        yield from (each for each in (lower, *lower.parents) if each.is_relative_to(top))


def _mode_without_private_group(place: Path, status: os.stat_result) -> int:
    """Return the mode, without group write access if the owner is the only member of the group (a umask of 002)."""
    mode = status.st_mode
    if not mode & stat.S_IWGRP or stat.S_ISLNK(mode):
        return mode
    import grp  # noqa: PLC0415 - rare: the umask of most systems is 022
    import pwd  # noqa: PLC0415

    if hasattr(os, "listxattr") and "system.posix_acl_access" in os.listxattr(place):
        return mode  # with an ACL, the group bits are its mask
    try:
        user, group = pwd.getpwuid(status.st_uid), grp.getgrgid(status.st_gid)
    except KeyError:
        return mode
    is_private = user.pw_gid == group.gr_gid and user.pw_name == group.gr_name and {*group.gr_mem} <= {user.pw_name}
    return mode & ~stat.S_IWGRP if is_private else mode
