"""Files and directories that are kept with the state of a step, once per content, and put back by a rollback."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from flowckpt.core.codec.blob import Recorded, pack
from flowckpt.core.codec.tags import encode
from flowckpt.core.records import PartialState
from flowckpt.core.system.ids import new_token
from flowckpt.errors import SettingError

Files = Mapping[str, PartialState]
"""Captured files, by path below the base."""


def capture(base: str, paths: Iterable[str | os.PathLike[str]]) -> Files:
    """Return the contents of files and directories; a path where nothing is, too, is a fact to put back.

    Args:
        base: the directory where relative paths start, and which no path may leave.
        paths: files and directories.

    Raises:
        SettingError: a path leaves the base, or is neither a file, a directory nor a link.
        OSError: something cannot be read.
    """
    if isinstance(paths, str | bytes | os.PathLike):
        raise SettingError(f"files is a list of paths, not {paths!r:.80}", setting="files", remedy="Use a list.")
    found: dict[str, Any] = {}
    for path in paths:
        _capture(Path(base), _below(base, path), found)
    return {name: PartialState(_held(entry)) for name, entry in found.items()}


def _held(entry: Mapping[str, Any]) -> Any:
    recorded = Recorded(encode(entry, "files"))
    _, blob = pack(recorded.tree)
    return blob or recorded


def _below(base: str, path: object) -> str:
    if isinstance(path, str | os.PathLike) and (text := os.fspath(path)) and isinstance(text, str):
        name = os.path.relpath(os.path.join(base, text), base)  # noqa: PTH118 - an absolute path stays as it is
        if name != os.curdir and name.partition(os.sep)[0] != os.pardir:
            _check_parents(Path(base), name)
            return name
    raise SettingError(
        f"{path!r:.200} is not a path below {base}",
        setting="files",
        remedy="Pass paths below the manager's base_path: only these can be put back.",
    )


def _check_parents(base: Path, name: str) -> None:
    """Refuse a path that a link leads out of the base."""
    parent = (base / name).parent
    if not parent.resolve().is_relative_to(base.resolve()):
        raise SettingError(f"{name!r:.200} is not below {base}: a link leads out of it", setting="files")


def _capture(base: Path, name: str, found: dict[str, Any]) -> None:
    path = base / name
    try:
        status = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        found[name] = {"kind": "absent"}
        return
    if stat.S_ISLNK(status.st_mode):
        found[name] = {"kind": "link", "target": str(path.readlink())}
    elif stat.S_ISREG(status.st_mode):
        found[name] = {"kind": "file", "mode": stat.S_IMODE(status.st_mode), "content": path.read_bytes()}
    elif stat.S_ISDIR(status.st_mode):
        names = sorted(each.name for each in path.iterdir())
        found[name] = {"kind": "directory", "mode": stat.S_IMODE(status.st_mode), "names": names}
        for each in names:
            _capture(base, os.path.join(name, each), found)  # noqa: PTH118 - names, not paths
    else:
        raise SettingError(f"{name!r:.200} is neither a file, a directory nor a link", setting="files")


def roots_of(files: Files) -> list[str]:
    """Return the paths that are below no other one."""
    return [name for name in files if not any(str(parent) in files for parent in Path(name).parents)]


def put_back(base: str, files: Files) -> None:
    """Make files and directories what they were; what a directory did not contain is removed.

    Args:
        base: the directory where the paths start.
        files: what was captured.

    Raises:
        SettingError: a path of the record leads out of the base.
        OSError: something cannot be written.
    """
    for name in sorted(files):  # a directory before what is in it
        if _below(base, name) != name:
            raise SettingError(f"{name!r:.200} is not a path below {base}", setting="files")
        entry, path = files[name].state, Path(base, name)
        if entry["kind"] == "directory":
            if path.is_symlink() or (path.exists() and not path.is_dir()):
                path.unlink()
            path.mkdir(parents=True, exist_ok=True)
            path.chmod(entry["mode"])
            for each in path.iterdir():
                if each.name not in entry["names"]:
                    _remove(each)
            continue
        if entry["kind"] == "file" and _is_same(path, entry):
            continue
        if path.is_dir() or entry["kind"] == "absent":
            _remove(path)
        if entry["kind"] != "absent":
            _replace(path, entry)


def _is_same(path: Path, entry: Mapping[str, Any]) -> bool:
    if path.is_symlink() or not path.is_file():
        return False
    status = path.stat()
    is_alike = stat.S_IMODE(status.st_mode) == entry["mode"] and status.st_size == len(entry["content"])
    return is_alike and path.read_bytes() == entry["content"]


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _replace(path: Path, entry: Mapping[str, Any]) -> None:
    """Write beside the file and rename, so that a reader never finds half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name[:100]}.{new_token(8)}")
    try:
        if entry["kind"] == "link":
            beside.symlink_to(entry["target"])
        else:
            with beside.open("xb") as file:
                file.write(entry["content"])
                os.fchmod(file.fileno(), entry["mode"])
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
