"""Each row of the page about the seeds names a test that exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/explanation/origins.md").read_text("utf-8")


def names_in(file):
    tree = ast.parse((ROOT / file).read_text("utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_each_seed_has_a_test():
    rows = [
        line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith(("| seed", "| program"))
    ]
    named = [re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row) for row in rows]
    assert len(rows) > 20
    assert [row for row, tests in zip(rows, named, strict=True) if not tests] == []
    assert [name for tests in named for file, name in tests if name not in names_in(file)] == []


def test_each_ported_program_of_the_page_is_an_example_that_is_killed():
    programs = set(re.findall(r"examples/(\w+)\.py\)", PAGE))
    killed = (ROOT / "tests/examples/test_ported_programs.py").read_text("utf-8")
    assert programs and all((ROOT / f"examples/{each}.py").exists() and f'"{each}"' in killed for each in programs)
