"""Whether this process loads a program just now to find the function of a step, and which modules it loaded by their file."""

from __future__ import annotations

from flowckpt.errors import ExecutorError

LOADED_FROM_FILE = "__flowckpt_file__"
"""Marks a module that was loaded by the path of its file."""


class Loading:
    """The state of loading in one process."""

    is_under_way = False


def refuse_while_loading() -> None:
    """Refuse to begin a run while a worker loads the program: it would run everything again.

    Raises:
        ExecutorError: the program is being loaded.
    """
    if Loading.is_under_way:
        raise ExecutorError(
            "the program starts a run when it is imported, and a worker process imports it to find the step's function",
            remedy="Put what it does as a program under: if __name__ == '__main__'.",
        )
