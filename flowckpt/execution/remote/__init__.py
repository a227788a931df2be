"""Steps that run somewhere else: what is sent, what comes back, and how it is waited for."""

from typing import TYPE_CHECKING

from flowckpt.core.system.lazy import lazy_modules
from flowckpt.errors import ExecutorError

if TYPE_CHECKING:
    from flowckpt.execution.remote import executors

__all__ = ["executors"]

__getattr__ = lazy_modules(__name__, *__all__)


# Whether this process loads a program just now to find the function of a step, and which modules it loaded by their file.


LOADED_FROM_FILE = "__flowckpt_file__"
"""Marks a module that was loaded by the path of its file."""


class Loading:
    """The state of loading in one process."""

    is_under_way = False


def run_while_loading() -> ExecutorError:
    """Return the refusal of a run that starts while a worker loads the program: it would run everything again."""
    return ExecutorError(
        "the program starts a run when it is imported, and a worker process imports it to find the step's function",
        remedy="Put what it does as a program under: if __name__ == '__main__'.",
    )
