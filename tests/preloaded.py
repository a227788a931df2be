"""Imports the whole package, for the server from which processes are forked."""

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

versions_of(["flowckpt"])  # list the directories of packages once instead of in each process
complete_all()  # complete lazy classes once: saves 15 ms of each process
gc.freeze()  # a collection in a process would copy the memory that all of them share
