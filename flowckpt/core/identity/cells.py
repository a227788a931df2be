"""The cells of a notebook or an `ipython` terminal, as their shell has run them.

The source of a cell is what the shell compiled: the cell after its transformations, of a `%%time` cell its body. Each text
is parsed once, with line numbers of its own, so that a function of any cell is found by its line.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import itertools
import linecache
import sys
import warnings
from collections.abc import Iterator, Mapping
from types import CodeType
from typing import Any

_MAGICS = {"capture", "prun", "time"}
"""The magics whose text runs in the namespace of the cells."""
_FIRST_LINES = itertools.count(1 << 20, 1 << 20)


def find_shell(scope: Mapping[str, Any]) -> Any:
    """Return the shell whose cells define the names of a namespace; None if there is none."""
    find = getattr(sys.modules.get("IPython.core.getipython"), "get_ipython", None)
    shell = None if find is None else find()
    return shell if shell is not None and shell.user_ns is scope else None


def list_cells(shell: Any) -> list[str]:
    """Return the texts of the cells that a shell has run, in this order."""
    return [*getattr(shell.history_manager, "input_hist_parsed", ())]


def read_statements(shell: Any, text: str) -> Iterator[ast.stmt]:
    """Yield the top-level statements of a cell, including those that a magic runs; nothing if it cannot be parsed."""
    for statement in _parse(_normalize(text))[1]:
        inner = _find_inner_text(statement)
        yield from (statement,) if inner is None else read_statements(shell, shell.transform_cell(inner))


def find_offset(shell: Any, texts: dict[str, None], code: CodeType) -> int | None:
    """Return what the lines of a function's code are shifted by in the statements of its cell; None if no cell has it.

    Args:
        shell: the shell.
        texts: the texts that it has compiled.
        code: the code.
    """
    if lines := linecache.getlines(code.co_filename):
        text = _normalize("".join(lines))
        return _parse(text)[0] if text in texts else None
    found = (text for text in reversed(texts) if code in _list_codes(shell.compile, text))
    text = next(found, "")  # a magic keeps no text for its file
    return _parse(text)[0] if text else None


def list_texts(shell: Any) -> dict[str, None]:
    """Return the texts that a shell has compiled, the newest last: cells, and what magics in them ran."""
    found: dict[str, None] = {}
    waiting = [_normalize(text) for text in reversed(list_cells(shell))]
    while waiting:
        text = waiting.pop()
        found.pop(text, None)
        found[text] = None
        inner = filter(None, map(_find_inner_text, _parse(text)[1]))
        waiting += [_normalize(shell.transform_cell(each)) for each in inner]
    return found


def _normalize(text: str) -> str:
    return "\n".join(text.splitlines()).rstrip("\n")


@functools.lru_cache(maxsize=4096)
def _parse(text: str) -> tuple[int, list[ast.stmt]]:
    """Return the statements of a text, and what their lines are shifted by."""
    with warnings.catch_warnings(), contextlib.suppress(SyntaxError, ValueError):
        warnings.simplefilter("ignore")  # already shown when the cell ran
        tree = ast.parse(text)
        ast.increment_lineno(tree, offset := next(_FIRST_LINES))
        return offset, tree.body
    return 0, []


def _find_inner_text(statement: ast.stmt) -> str | None:
    """Return the text that a magic runs in the namespace of the cells."""
    match statement:
        case ast.Expr(
            ast.Call(
                ast.Attribute(ast.Call(ast.Name("get_ipython")), "run_cell_magic" | "run_line_magic"),
                [ast.Constant(name), *_, ast.Constant(str(text))],
            )
        ) if name in _MAGICS:
            return text
    return None


@functools.lru_cache(maxsize=4096)
def _list_codes(compile_text: Any, text: str) -> frozenset[CodeType]:
    """Return the code of all functions of a text, which equals that of the same text under another file name."""
    found = set[CodeType]()
    with contextlib.suppress(SyntaxError, ValueError):
        waiting = [compile_text(ast.parse(text), "<cell>", "exec")]
        while waiting:
            inner = [each for each in waiting.pop().co_consts if isinstance(each, CodeType)]
            found.update(inner)
            waiting += inner
    return frozenset(found)
