"""Which files are code of Python or of an installed package, and not of the project that is being worked on."""

from __future__ import annotations

import functools
import linecache
import site
import sys
from pathlib import Path


@functools.lru_cache(maxsize=1024)
def is_installed(file: str) -> bool:
    """Tell whether a file belongs to Python or to an installed package.

    By the very directories of this Python: a virtualenv inside a project, or a project below some `site-packages`, must
    not be taken for it. Links are followed, as a project that is linked into `site-packages` is still being worked on.

    Args:
        file: its path.
    """
    path = Path(file).resolve()
    return any(path.is_relative_to(directory) for directory in _installed_directories())


@functools.cache
def _installed_directories() -> frozenset[Path]:
    # Of `site`, which Python has imported when it starts; `sysconfig` takes 4 ms of every resume.
    prefixes = dict.fromkeys([sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix])
    standard = str(Path(str(linecache.__file__)).parent)
    paths = [standard, *site.getsitepackages(list(prefixes)), site.getusersitepackages()]
    return frozenset(Path(path).resolve() for path in paths)
