"""The modules of the program, for a process that did not begin with them.

What is pickled names modules. Most can be imported by anybody; two kinds cannot: the script that was run (`__main__`), and
a file that was loaded by its path. Of these the engine says where they are, and the worker loads them when they are named.
The script is loaded under another name than `__main__`, so what stands under its guard does not run.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from flowckpt.execution.remote.loading import LOADED_FROM_FILE, Loading

MAIN = "__main__"
LOADED_MAIN = "__mp_main__"
"""The name that Python's own worker processes give the script."""

Places = Mapping[str, tuple[str, str]]
"""Where modules are that cannot be imported: by name the file, and the package that a script run with `-m` belongs to."""


def places_of_modules() -> dict[str, tuple[str, str]]:
    """Return where the modules of this program are that another process cannot import by their names."""
    found = {}
    for name, module in list(sys.modules.items()):
        if name != MAIN and LOADED_FROM_FILE in getattr(module, "__dict__", ()):
            found[name] = str(Path(module.__file__ or "").absolute()), ""
    main = sys.modules.get(MAIN)
    file, spec = getattr(main, "__file__", None), getattr(main, "__spec__", None)
    if file is not None and Path(file).is_file():
        found[MAIN] = str(Path(file).absolute()), "" if spec is None else str(spec.parent)
    return found


def provide(name: str, places: Places) -> None:
    """Make sure that a module that cannot be imported is there, where its place is known.

    Args:
        name: the module.
        places: see `places_of_modules`.
    """
    if name not in places:
        return
    file, package = places[name]
    if _is_there(name, file):
        return
    was_loading, Loading.is_under_way = Loading.is_under_way, True
    try:
        if name == MAIN:
            sys.modules[MAIN] = _loaded(f"{package}.{LOADED_MAIN}" if package else LOADED_MAIN, file)
        else:
            _loaded(name, file)
    finally:
        Loading.is_under_way = was_loading


def name_in_engine(name: str) -> str:
    """Return the name of a class as it is in the process in which the script was run.

    Args:
        name: its qualified name here.
    """
    before, _, rest = name.rpartition(f"{LOADED_MAIN}.")
    return f"{MAIN}.{rest}" if rest != name and (not before or before.endswith(".")) else name


def _is_there(name: str, file: str) -> bool:
    known = getattr(sys.modules.get(name), "__file__", None)
    return known is not None and str(Path(known).absolute()) == file


def _loaded(name: str, file: str) -> ModuleType:
    loader = importlib.machinery.SourceFileLoader(name, file)  # a script need not end in .py
    spec = importlib.util.spec_from_file_location(name, file, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    setattr(module, LOADED_FROM_FILE, True)
    sys.modules[name] = module
    try:
        loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module
