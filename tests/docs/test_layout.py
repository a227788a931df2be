"""The page about the code names what is there: all of it, once, and nothing else."""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from pathlib import Path

import pytest

import flowckpt

PACKAGE = Path(flowckpt.__file__).parent
ROOT = PACKAGE.parent
PAGE = (ROOT / "docs/explanation/layout.md").read_text("utf-8")


def section(title):
    return PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]


def last_cells(title):
    """The last cell of each row of the table in a section."""
    rows = [line for line in section(title).splitlines() if line.startswith("|")]
    return [row.rstrip("|").rpartition("|")[2] for row in rows[2:]]


def test_each_part_of_the_package_is_in_one_layer():
    named = Counter(name for cell in last_cells("The layers") for name in re.findall(r"`([^`]+)`", cell))
    files = {path.name for path in PACKAGE.glob("*.py")} - {"__init__.py"}
    packages = {f"{path.parent.name}/" for path in PACKAGE.glob("*/__init__.py")}
    assert named == Counter(files | packages)


def test_each_room_of_the_core_is_named_once():
    named = re.findall(r"^\| `core/(\w+)/` ", section("The core"), re.MULTILINE)
    assert sorted(named) == sorted(path.parent.name for path in (PACKAGE / "core").glob("*/__init__.py"))


def test_each_room_of_the_engine_is_named_once():
    named = Counter(name for cell in last_cells("The engine") for name in re.findall(r"`([^`]+)`", cell))
    rooms = {path.stem for path in (PACKAGE / "engine").iterdir()} - {"__init__", "__pycache__"}
    assert named == Counter(rooms)


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`([\w./]+(?:/|\.py))`", PAGE))))
def test_each_file_that_is_named_is_there(name):
    assert any((place / name).exists() for place in (PACKAGE, ROOT)) or [*(PACKAGE / "stores").glob(f"*/{name}")]


def test_the_modules_of_a_store_are_there():
    rows = [line for line in section("The stores").splitlines() if line.startswith("| `stores/")]
    assert len(rows) == 4
    for row in rows:
        places, modules = (re.findall(r"`([^`]+)`", cell) for cell in row.strip("|").split("|"))
        assert all((PACKAGE / places[0] / f"{module}.py").exists() for module in modules), row


@functools.cache
def defined_in(path):
    """The names that a module defines: `name`, `Class.name`, and `module.name` for what is at its top."""
    tree = ast.parse(path.read_text("utf-8"))
    found = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef | ast.Module):
            continue
        owner = node.name if isinstance(node, ast.ClassDef) else path.stem
        for each in ast.iter_child_nodes(node):
            targets = each.targets if isinstance(each, ast.Assign) else [getattr(each, "target", None)]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
            names += [each.name] if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) else []
            found |= {*names, *(f"{owner}.{name}" for name in names)}
    return found


PLACED = re.findall(r"`([A-Za-z_][\w.]*)` (?:of|in|\() ?`([\w./]+\.py)`", PAGE.replace("(`", "( `"))
UNDEFINED = {"NAME_command", "drive_run", "finish_run"}  # a pattern, and two functions that the page argues against


def test_the_page_says_of_many_names_in_which_module_they_are():
    assert len(PLACED) > 35


@pytest.mark.parametrize(("name", "module"), sorted(set(PLACED)))
def test_each_name_is_defined_in_the_module_that_the_page_gives(name, module):
    assert name in defined_in(PACKAGE / module)


def test_each_name_on_the_page_is_defined_somewhere():
    written = re.findall(r"`([A-Za-z_]\w*(?:\.\w+)?)(?:\(\))?`", PAGE)
    names = {name for name in written if re.search(r"[._A-Z]", name) and not name.endswith(".py")}
    modules = [*PACKAGE.rglob("*.py")]
    assert names - {path.stem for path in modules} - set().union(*map(defined_in, modules)) == UNDEFINED
