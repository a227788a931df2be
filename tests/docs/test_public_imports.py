"""Pages and examples import public packages only."""

import re
import sys

import pytest
from pages import DOCS, PAGES, ROOT, blocks, code_spans, shown

sys.path.insert(0, str(DOCS))
from api_pages import PUBLIC  # noqa: E402

IMPORT = re.compile(r"^\s*(?:>>> )?(?:from (flowckpt[\w.]*) import|import (flowckpt[\w.]*))", re.MULTILINE)
DOTTED = re.compile(r"^(?:from |import )?(flowckpt(?:\.\w+)+)")


def is_public(dotted: str) -> bool:
    """Return whether a dotted name is a public package, or a name directly in one."""
    return dotted in PUBLIC or dotted.rpartition(".")[0] in PUBLIC


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_a_page_imports_and_names_public_packages_only(page):
    imported = [
        f"{block.where}: {match[1] or match[2]}"
        for block in blocks(page)
        for match in IMPORT.finditer(block.text)
        if (match[1] or match[2]) not in PUBLIC
    ]
    named = [
        f"{shown(page)}:{number}: {match[1]}"
        for number, span in code_spans(page)
        if (match := DOTTED.match(span)) and not is_public(match[1])
    ]
    assert imported + named == []


@pytest.mark.parametrize("file", sorted((ROOT / "examples").rglob("*.py")), ids=shown)
def test_an_example_imports_public_packages_only(file):
    found = [match[1] or match[2] for match in IMPORT.finditer(file.read_text(encoding="utf-8"))]
    assert [name for name in found if name not in PUBLIC] == []
