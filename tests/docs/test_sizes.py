"""Some pages stay short: people read them in a hurry."""

from __future__ import annotations

import re

import pytest
from pages import DOCS, PAGES, ROOT, prose, shown

DECISIONS = sorted((DOCS / "adr").glob("0*.md"))


def test_the_readme_is_short():
    text = (ROOT / "README.md").read_text("utf-8")
    assert len(text.splitlines()) <= 140
    assert len(text.split()) <= 1_000


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_every_picture_is_there(page):
    pictures = [match for _, line in prose(page) for match in re.findall(r"!\[[^\]]+\]\(([^()\s]+)\)", line)]
    assert [picture for picture in pictures if not (page.parent / picture).is_file()] == []


def test_there_are_few_decisions_with_consecutive_numbers():
    assert len(DECISIONS) <= 25
    assert [int(page.name[:4]) for page in DECISIONS] == [*range(1, len(DECISIONS) + 1)]


@pytest.mark.parametrize("page", DECISIONS, ids=shown)
def test_a_decision_is_short_and_has_its_parts(page):
    text = page.read_text("utf-8")
    assert len(text.split()) <= 400
    parts = ["Context", "Decision", "Alternatives", "Consequences"]
    assert [line.removeprefix("## ") for _, line in prose(page) if line.startswith("## ")] == parts
    title = text.splitlines()[0].removeprefix("# ")
    assert title.startswith(f"{page.name[:4]}. ")
    assert f"- [{title}]({page.name})" in (DOCS / "adr" / "index.md").read_text("utf-8").splitlines()
