"""What identifies code: a digest of its syntax tree, in which comments, formatting and docstrings do not count."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from hashlib import sha256
from typing import Any

FORM = "ast:v1:"


def fingerprint(function: Callable[..., Any]) -> str:
    """Return the fingerprint of a function; empty where its source is not at hand (a REPL, a builtin).

    Args:
        function: the function; decorators around it that keep `__wrapped__` are looked through.
    """
    try:
        source = inspect.getsource(inspect.unwrap(function))
    except (OSError, TypeError):
        return ""
    return fingerprint_of_source(source)


def fingerprint_of_source(source: str) -> str:
    """Return the fingerprint of a piece of source; empty where it does not parse by itself.

    Args:
        source: the text of a definition, indented or not.
    """
    # Indented source becomes a block; to dedent it would change its strings, and fails where one has a line at column 0.
    is_indented = source[:1] in (" ", "\t")
    try:
        tree: ast.AST = ast.parse(f"if 1:\n{source}" if is_indented else source)
    except (SyntaxError, ValueError):
        return ""
    if is_indented:
        tree = ast.Module(tree.body[0].body, [])  # type: ignore[attr-defined]
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and ast.get_docstring(node, False):
            node.body = node.body[1:] or [ast.Pass()]
    return FORM + sha256(_text(tree).encode("utf-8", "backslashreplace")).hexdigest()


def _text(node: object) -> str:
    """Write a tree as `ast.dump` does, but alike in every version of Python: what is empty or absent is left out."""
    if isinstance(node, list):
        return f"[{', '.join(map(_text, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = [(name, getattr(node, name, None)) for name in node._fields if name != "kind"]
    said = ", ".join(f"{name}={_text(value)}" for name, value in fields if value is not None and value != [])
    if isinstance(node, ast.Constant) and node.value is None:
        said = "value=None"
    return f"{type(node).__name__}({said})"
