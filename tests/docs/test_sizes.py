"""Some pages stay short: people read them in a hurry."""

from __future__ import annotations

import re

import pytest
from pages import PAGES, ROOT, prose, shown


def test_the_readme_is_short():
    text = (ROOT / "README.md").read_text("utf-8")
    assert len(text.splitlines()) <= 140
    assert len(text.split()) <= 1_000


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_every_picture_is_there(page):
    pictures = [match for _, line in prose(page) for match in re.findall(r"!\[[^\]]+\]\(([^()\s]+)\)", line)]
    assert [picture for picture in pictures if not (page.parent / picture).is_file()] == []
