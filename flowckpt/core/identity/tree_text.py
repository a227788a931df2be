"""The text of a syntax tree, in which comments, formatting and docstrings do not count: the form that fingerprints digest."""

from __future__ import annotations

import ast
from typing import Any

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
BARE = {
    cls: f"{cls.__name__}()"
    for cls in map(ast.__dict__.get, dir(ast))
    if isinstance(cls, type) and issubclass(cls, ast.AST) and not cls._fields
}
"""The text of nodes without fields: contexts, operators, `pass`."""


def format_tree(tree: ast.AST | list[Any]) -> str:
    """Write a tree like `ast.dump`, but the same in every Python version: empty and absent fields are left out."""
    try:
        return _format_node(tree)
    except RecursionError:  # an expression of a thousand terms is a tree a thousand levels deep
        return _write_deep_tree(tree)


_WITH_EXCEPTIONS = {*_DEFINITIONS, ast.JoinedStr}


def _format_node(node: Any) -> str:
    # Takes half of the time for the fingerprints of a start, so the three most common kinds of nodes come first.
    kind = type(node)
    if (bare := BARE.get(kind)) is not None:
        return bare
    if kind is ast.Name:
        return f"Name(id={node.id!a}, ctx={BARE[type(node.ctx)]})"
    if kind is ast.Constant:
        return f"Constant(value={_write_literal(node.value)})"
    if kind is ast.Attribute:
        return f"Attribute(value={_format_node(node.value)}, attr={node.attr!a}, ctx={BARE[type(node.ctx)]})"
    if kind is list:
        return f"[{', '.join([_format_node(each) for each in node])}]"
    if not isinstance(node, ast.AST):
        return _write_literal(node)
    if kind in _WITH_EXCEPTIONS:
        fields = [f"{name}={_format_node(value)}" for name, value in _written_fields(node)]
    else:
        fields = [
            f"{name}={_format_node(value)}"
            for name in node._fields
            if (value := getattr(node, name, None)) is not None and value != []
        ]
    return f"{kind.__name__}({', '.join(fields)})"


def _write_deep_tree(tree: ast.AST | list[Any]) -> str:
    """Return the same as `_format_node`, without recursion."""
    written: list[str] = []
    waiting: list[Any] = [tree]
    while waiting:
        node = waiting.pop()
        if type(node) is tuple:  # text that follows a node
            written.append(node[0])
        elif isinstance(node, list):
            waiting.append(("]",))
            for index in range(len(node) - 1, -1, -1):
                waiting += [node[index], (", ",)] if index else [node[index]]
            written.append("[")
        elif isinstance(node, ast.AST):
            waiting.append((")",))
            written.append(f"{type(node).__name__}(")
            fields = _written_fields(node)
            for index in range(len(fields) - 1, -1, -1):
                name, value = fields[index]
                waiting += [value, (f", {name}=" if index else f"{name}=",)]
        else:
            written.append(_write_literal(node))
    return "".join(written)


def _written_fields(node: ast.AST) -> list[tuple[str, Any]]:
    if isinstance(node, ast.Constant):
        return [("value", (_write_literal(node.value),))]
    kept = [(name, value) for name in node._fields if (value := getattr(node, name, None)) is not None and value != []]
    if isinstance(node, _DEFINITIONS) and ast.get_docstring(node, clean=False):
        kept = [(name, value[1:] or [ast.Pass()] if name == "body" else value) for name, value in kept]
    elif isinstance(node, ast.JoinedStr):  # Python 3.12 leaves empty parts in some
        pieces = [each for each in node.values if not (isinstance(each, ast.Constant) and each.value == "")]
        kept = [("values", pieces)] if pieces else []
    return kept


def _write_literal(value: object) -> str:
    """Write a constant in ASCII, because `repr` depends on the Unicode version, and without the limit on digits."""
    return hex(value) if type(value) is int and abs(value) >= 1 << 64 else ascii(value)
