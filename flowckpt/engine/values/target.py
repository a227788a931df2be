"""The target of a run, `path/to/file.py:name` or `package.module:name`: describe it and load its workflow."""

from __future__ import annotations

import contextlib
import importlib
import importlib.machinery
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from flowckpt.core.dsl import Workflow
from flowckpt.core.system import external
from flowckpt.errors import TargetError
from flowckpt.execution.remote import LOADED_FROM_FILE


def describe_target(workflow: Workflow[Any, Any]) -> dict[str, str]:
    """Return the target to record for a workflow; empty for a workflow that is defined inside a function."""
    function = workflow.function
    if "<locals>" in function.__qualname__:
        return {}
    module = function.__module__
    scope = vars(sys.modules[module]) if module in sys.modules else {}
    if module == "__main__":  # a debugger or profiler runs the script in a namespace of its own
        scope = getattr(function, "__globals__", scope)
    names = (name for name, value in scope.items() if value is workflow)
    described = {"cwd": str(Path.cwd()), "name": next(iter(names), function.__qualname__)}
    if (file := scope.get("__file__")) is not None:
        described["file"] = str(Path(file).absolute())
    if module == "__main__":  # a script has none; after `python -m`, relative imports need the module's name
        module = getattr(scope.get("__spec__"), "name", "")
    elif _is_loaded_from_file(module):
        module = ""
    return {**described, "module": module} if module else described


def parse_target(target: str) -> dict[str, str]:
    """Return the parts of a target as a user types it.

    Args:
        target: `path/to/file.py[:workflow]` or `package.module[:workflow]`.

    Raises:
        TargetError: it is neither.
    """
    place, _, name = target.rpartition(":") if ":" in target else (target, "", "")
    if place.endswith(".py") or "/" in place or ("." in place and Path(place).is_file()):
        return {"file": str(Path(place).absolute()), "name": name, "cwd": str(Path.cwd())}
    if place and all(part.isidentifier() for part in place.split(".")):
        return {"module": place, "name": name, "cwd": str(Path.cwd())}
    raise TargetError(
        f"{target!r} is neither a file nor a module",
        target=target,
        remedy="Write path/to/file.py:workflow or package.module:workflow.",
    )


def load_target(described: Mapping[str, str], *, shown: str = "") -> Workflow[Any, Any]:
    """Import a target and return its workflow.

    Args:
        described: the value of `parse_target` or `describe_target`.
        shown: its name in an error.

    Raises:
        TargetError: the target cannot be imported, or does not contain the workflow.
    """
    shown = shown or described.get("file") or described.get("module") or "?"
    module = _import(described, shown)
    name = described.get("name", "")
    if name:
        found: Any = module
        for part in name.split("."):
            found = getattr(found, part, None)
        if isinstance(found, Workflow):
            return found
        raise TargetError(
            f"{shown} has no workflow {name!r}"
            if found is None
            else f"{name!r} in {shown} is not a workflow: {found!r:.80}",
            target=shown,
            remedy=_suggest_names(module) or "Decorate the generator function with @workflow.",
        )
    workflows = {id(value): value for value in vars(module).values() if isinstance(value, Workflow)}
    own = [value for value in workflows.values() if value.function.__module__ == module.__name__]
    if len(own) == 1:
        return own[0]
    raise TargetError(
        f"{shown} defines {len(own)} workflows" if own else f"{shown} defines no workflow",
        target=shown,
        remedy=_suggest_names(module) or "Decorate a generator function with @workflow.",
    )


def _suggest_names(module: ModuleType) -> str:
    names = [name for name, value in vars(module).items() if isinstance(value, Workflow)]
    return f"Write one of them after a colon: {', '.join(names)}." if names else ""


def _is_loaded_from_file(module: str) -> bool:
    return hasattr(sys.modules.get(module), LOADED_FROM_FILE)


def _import(described: Mapping[str, str], shown: str) -> ModuleType:
    file, module = described.get("file"), described.get("module")
    try:
        if module is not None:
            cwd = described.get("cwd", "")
            if cwd and cwd not in sys.path:
                sys.path.insert(0, cwd)
            try:
                return importlib.import_module(module)
            except ModuleNotFoundError as error:
                if file is None or error.name is None or not f"{module}.".startswith(f"{error.name}."):
                    raise
                if (root := _find_root(module, Path(file))) is not None:  # only PYTHONPATH named it, as for `src/`
                    sys.path.insert(0, str(root))
                    return importlib.import_module(module)
        if file is not None:
            return _import_file(Path(file), shown)
    except TargetError:
        raise
    except Exception as error:
        raise TargetError(
            f"{shown} cannot be imported: {type(error).__name__}: {error}",
            target=shown,
            remedy=_suggest_module(error, file) or "Run it with python to see the whole traceback.",
        ) from error
    raise TargetError(f"the record of {shown} has neither a file nor a module", target=shown)


def _find_root(module: str, file: Path) -> Path | None:
    """Return the directory from which a file is imported under the name of a module; None if it is not there."""
    place = file.parent if file.name == "__init__.py" else file.with_suffix("")
    parts = module.split(".")
    return place.parents[len(parts) - 1] if file.is_file() and [*place.parts[-len(parts) :]] == parts else None


def _suggest_module(error: Exception, file: str | None) -> str:
    """Return how to name a file of a package, if the file fails at a relative import; otherwise an empty text."""
    if file is None or "attempted relative import" not in str(error):
        return ""
    module = [Path(file).parent.name, Path(file).stem]
    top = Path(file).parent.parent
    while (top / "__init__.py").is_file():
        module.insert(0, top.name)
        top = top.parent
    return f"The file belongs to a package: write {'.'.join(module)} instead, in the directory {top}."


class AsWritten(importlib.machinery.SourceFileLoader):
    """Compiles a program from its source each time, as `python file.py` does.

    A cached form is compared with its source by size and second only: an edit in the same second would not be noticed.
    """

    def get_code(self, fullname: str) -> CodeType:
        """Return the code of the source."""
        del fullname
        return self.source_to_code(self.get_data(self.path), self.path)


def _suggest_file(file: Path) -> str:
    """Return a question with the most similar file name; empty if there is none."""
    with contextlib.suppress(OSError):  # its directory may be wrong, too
        names = [each.name for each in file.parent.iterdir() if each.is_file()]
        return "".join(
            f"Did you mean {each!r}? " for each in external.difflib.get_close_matches(file.name, names, 1, 0.75)
        )
    return ""


def _import_file(file: Path, shown: str) -> ModuleType:
    """Import a file the way `python file.py` would: its directory first on the path, under the name of the file."""
    if not file.is_file():
        base = "" if Path(shown).is_absolute() else f"; it is relative to the current directory, {Path.cwd()}"
        raise TargetError(
            f"{file} is a directory" if file.is_dir() else f"there is no file {file}",
            target=shown,
            remedy=f"{_suggest_file(file)}Check the path{base}.",
        )
    name = file.stem
    known = sys.modules.get(name)
    if known is not None and getattr(known, "__file__", None) == str(file):
        return known
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise TargetError(
            f"{file} is not a Python file", target=shown, remedy="Name one that ends in .py, or write package.module."
        )
    if isinstance(spec.loader, importlib.machinery.SourceFileLoader):
        spec.loader = AsWritten(name, str(file))
    module = importlib.util.module_from_spec(spec)
    setattr(module, LOADED_FROM_FILE, True)
    sys.modules[name] = module  # annotations are resolved with it, as after a plain import
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module
