"""Imports the whole package, for the server that processes are forked off."""

import contextlib
import importlib
import pkgutil

import flowckpt
from flowckpt.core.system.functions import versions_of

for module in pkgutil.walk_packages(flowckpt.__path__, "flowckpt."):
    if not module.name.endswith("__main__"):
        with contextlib.suppress(ImportError):  # an optional driver that is not installed
            importlib.import_module(module.name)

versions_of(["flowckpt"])  # the directories of packages are listed once, and not in each process
