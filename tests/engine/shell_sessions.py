"""Runs sessions of cells in IPython shells without a kernel: the sessions from standard input, what they print to standard output.

Each session is a process of its own, forked after the slow start of the shell.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import tempfile
from pathlib import Path

from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

import tests.preloaded  # noqa: F401 - imported before the forks
from flowckpt.core.identity import fingerprint, sources


def run_session(shell: InteractiveShell, cells: list[str], place: Path) -> None:
    fingerprint.OF_PROCESS = sources.OF_PROCESS = f"loaded by {os.getpid()}: "  # a session is a process of its own
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        for cell in cells:
            shell.run_cell(cell, store_history=True)
    place.write_text(printed.getvalue())


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["IPYTHONDIR"], place = folder, Path(folder, "printed")
        shell = InteractiveShell.instance(config=Config({"HistoryManager": {"enabled": False}}))
        printed = []
        for cells in json.load(sys.stdin):
            child = os.fork()
            if not child:
                run_session(shell, cells, place)
                os._exit(0)
            os.waitpid(child, 0)
            printed.append(place.read_text())
        json.dump(printed, sys.stdout)


if __name__ == "__main__":
    main()
