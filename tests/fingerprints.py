"""The fingerprint of a piece of source, for tests that write code as text."""

from __future__ import annotations

import ast
from hashlib import sha256

from flowckpt.core.identity.fingerprint import FORM
from flowckpt.core.identity.syntax import format_tree


def fingerprint_of_source(source: str) -> str:
    """Return the fingerprint of a piece of source; empty if it does not parse by itself.

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
    return FORM + sha256(format_tree(tree).encode()).hexdigest()
