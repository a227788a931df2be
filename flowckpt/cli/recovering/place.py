"""Whether a run can be resumed on this machine: its program and its directory are here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from flowckpt.checkpoint.reference import RunInfo


def working_directory(info: RunInfo) -> Path | None:
    """Return the directory in which a run was started; None where the record does not say.

    Args:
        info: the run.
    """
    found = info.metadata.get("base_path") or _target(info).get("cwd")
    return Path(found) if isinstance(found, str) and found else None


def why_not_here(info: RunInfo) -> str:
    """Return why a run cannot be resumed here; an empty text where nothing speaks against it.

    Args:
        info: the run.
    """
    target = _target(info)
    file, module = target.get("file"), target.get("module")
    if not target.get("name") or not (file or module):
        return "its record does not say where its workflow is: its own program must resume it"
    directory = working_directory(info)
    if directory is not None and not directory.is_dir():
        return f"the directory it was started in is not on this machine: {directory}"
    if not module and not Path(str(file)).is_file():
        return f"its program is not on this machine: {file}"
    return ""


def _target(info: RunInfo) -> Mapping[str, str]:
    """Return where the record says that its workflow is; nothing where it says what cannot be."""
    found = info.metadata.get("target")
    if not isinstance(found, Mapping) or not all(isinstance(each, str) for each in found.values()):
        return {}
    return found
