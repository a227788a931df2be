"""Lazy imports of modules of the standard library and other packages that few runs need.

Some take several milliseconds to import; others belong to extras and may be missing.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import dataclasses
    import decimal
    import difflib
    import fractions
    import getpass
    import hashlib
    import html
    import random
    import socket
    import statistics
    import tomllib
    import uuid
    import zoneinfo
    from email import utils as email_utils
    from importlib import metadata

    from click import shell_completion
    from cryptography import exceptions as cryptography_exceptions
    from cryptography.hazmat.primitives.ciphers import aead

    cloudpickle: Any
    dask: Any
    distributed: Any
    zstd: Any

MODULES = {
    "aead": "cryptography.hazmat.primitives.ciphers.aead",
    "cloudpickle": "cloudpickle",
    "cryptography_exceptions": "cryptography.exceptions",
    "dask": "dask",
    "dataclasses": "dataclasses",
    "decimal": "decimal",
    "difflib": "difflib",
    "distributed": "distributed",
    "email_utils": "email.utils",
    "fractions": "fractions",
    "getpass": "getpass",
    "hashlib": "hashlib",
    "html": "html",
    "metadata": "importlib.metadata",
    "random": "random",
    "shell_completion": "click.shell_completion",
    "socket": "socket",
    "statistics": "statistics",
    "tomllib": "tomllib",
    "uuid": "uuid",
    "zoneinfo": "zoneinfo",
    "zstd": "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd",
}
"""The module of each name."""


# fmt: off
__all__ = [
    "aead", "cloudpickle", "cryptography_exceptions", "dask", "dataclasses", "decimal", "difflib", "distributed", "email_utils",
    "fractions", "getpass", "hashlib", "html", "metadata", "random", "shell_completion", "socket", "statistics", "tomllib", "uuid",
    "zoneinfo", "zstd",
]
# fmt: on


def __getattr__(name: str) -> Any:
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = importlib.import_module(MODULES[name])
    return found


def is_pydantic(cls: Any) -> bool:
    """Return whether a class is a pydantic model; one can only exist where its library is loaded."""
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(cls, type) and issubclass(cls, pydantic.BaseModel)
