"""Imports the whole package, for the server that processes are forked off."""

import contextlib
import gc
import importlib
import pkgutil

import flowckpt
from flowckpt.core.system.attrs_base import complete_all
from flowckpt.core.system.functions import versions_of

for module in pkgutil.walk_packages(flowckpt.__path__, "flowckpt."):
    if not module.name.endswith("__main__"):
        with contextlib.suppress(ImportError):  # an optional driver that is not installed
            importlib.import_module(module.name)

versions_of(["flowckpt"])  # the directories of packages are listed once, and not in each process
complete_all()  # and so are the classes that wait for their first object: 15 ms of each process
gc.freeze()  # a collection in a process would copy the memory that all of them share
