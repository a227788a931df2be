"""The command line: `flowckpt` and `python -m flowckpt`."""

import sys

try:
    from flowckpt.cli.main import main
except KeyboardInterrupt:  # so early that nothing has begun, and nobody is there to say so
    sys.stderr.write("flowckpt: stopped\n")
    sys.exit(130)

__all__ = ["main"]
