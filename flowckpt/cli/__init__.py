"""The command line: `flowckpt` and `python -m flowckpt`."""

import sys

from flowckpt.core.system.lazy import paused_collector

try:
    with paused_collector():
        from flowckpt.cli.main import main
except KeyboardInterrupt:  # so early that nothing has started that could report it
    sys.stderr.write("flowckpt: stopped\n")
    sys.exit(130)

__all__ = ["main"]
