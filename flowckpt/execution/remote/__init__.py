"""Steps that run in other processes: what is sent, what is returned, and how the engine waits."""

from typing import TYPE_CHECKING

from flowckpt.core.system.lazy import lazy_modules
from flowckpt.errors import ExecutorError

if TYPE_CHECKING:
    from flowckpt.execution.remote import executors

__all__ = ["executors"]

__getattr__ = lazy_modules(__name__, *__all__)


# Whether this process is loading a program to find the function of a step, and which modules it loaded by file.


LOADED_FROM_FILE = "__flowckpt_file__"
"""Marks a module that was loaded by the path of its file."""


class Loading:
    """The state of loading in one process."""

    is_under_way = False


def run_while_loading_error() -> ExecutorError:
    """Return the error of a run that starts while a worker loads the program: it would run everything again."""
    return ExecutorError(
        "the program starts a run when it is imported, and a worker process imports it to find the step's function",
        remedy="Put the program's main code under: if __name__ == '__main__'.",
    )
