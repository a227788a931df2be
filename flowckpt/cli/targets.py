"""The workflow of a command: from what is typed, or from what a run's record says."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flowckpt.cli.notices import warn
from flowckpt.dsl import Workflow
from flowckpt.engine.target import load_target, parse_target
from flowckpt.errors import TargetError


def typed_target(text: str) -> tuple[Workflow[..., Any], dict[str, str]]:
    """Load a target as a user types it; return it with what the record shall say about where it is.

    Args:
        text: `path/to/file.py[:workflow]` or `package.module[:workflow]`.

    Raises:
        TargetError: there is no such workflow.
    """
    described = parse_target(text)
    workflow = _loaded(described, text)
    if not described["name"]:
        described["name"] = _name_of(workflow)
    if module := described.get("module"):
        file = getattr(sys.modules.get(module), "__file__", None)
        if file is not None:
            described["file"] = str(Path(file).absolute())
    return workflow, described


def recorded_target(described: Mapping[str, str], workflow_id: str) -> Workflow[..., Any]:
    """Load the target of a run from its record.

    Args:
        described: what the record says.
        workflow_id: the run, for errors.

    Raises:
        TargetError: the record names none, or it is not there.
    """
    if not described.get("name") or not (described.get("file") or described.get("module")):
        raise TargetError(
            f"the record of run {workflow_id!r} does not say where its workflow is",
            target="",
            remedy="It was started by a program, from inside a function. Say where it can be loaded from "
            "(--target path/to/file.py:workflow), or resume it from that program: engine.resume_sync(workflow, …).",
        )
    cwd = described.get("cwd", "")
    if cwd and cwd != str(Path.cwd()):
        warn(f"the run was started in {cwd}, and this is {Path.cwd()}: relative paths mean something else here")
    file = described.get("file", "")
    if file and not described.get("module") and not Path(file).is_file():
        raise TargetError(
            f"there is no file {file}, where run {workflow_id!r} has its workflow",
            target=file,
            remedy="Where the file has moved, say where it is now: --target path/to/file.py:name.",
        )
    return _loaded(described, f"{described.get('file') or described.get('module')}:{described['name']}")


def _loaded(described: Mapping[str, str], shown: str) -> Workflow[..., Any]:
    try:
        return load_target(described, shown=shown)
    except SystemExit as error:
        raise TargetError(
            f"{shown} exits when it is imported (with {error.code!r:.80})",
            target=shown,
            remedy="Put what it does as a program under: if __name__ == '__main__'.",
        ) from error


def _name_of(workflow: Workflow[..., Any]) -> str:
    module = sys.modules[workflow.function.__module__]
    return next(name for name, value in vars(module).items() if value is workflow)
