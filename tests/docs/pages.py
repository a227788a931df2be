"""The pages of the documentation, and what stands in them: headings, links, and fenced blocks with their lines."""

import re
from pathlib import Path

import attrs

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / ".github").glob("*.md"), *DOCS.rglob("*.md")])

_FENCE = re.compile(r"^( *)(`{3,})(.*)$")
_HEADING = re.compile(r"^(#{1,6}) +(.+?) *#*$")
_LINK = re.compile(r"(?<!!)\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^()\s]+)\)")
_CODE_SPAN = re.compile(r"(`+)(.+?)\1")


@attrs.frozen
class Block:
    """A fenced block: its language, its text, and the line of the page on which the text begins, from 1."""

    page: Path
    language: str
    text: str
    line: int
    follows: bool  # nothing but blank lines stands between it and the block before

    @property
    def where(self) -> str:
        return f"{shown(self.page)}:{self.line}"


def shown(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page."""
    found: list[Block] = []
    fence, language, began, lines, is_close = "", "", 0, [], False
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        match = _FENCE.match(line)
        if not fence and match:
            fence, language, began, lines = match[2], match[3].strip(), number + 1, []
        elif fence and match and match[2].startswith(fence) and not match[3].strip():
            found.append(Block(page, language, "".join(f"{each}\n" for each in lines), began, is_close))
            fence, is_close = "", True
        elif fence:
            lines.append(line)
        elif line.strip():
            is_close = False
    assert not fence, f"{shown(page)}:{began}: the block is never closed"
    return found


def prose(page: Path) -> list[tuple[int, str]]:
    """Return the lines outside of fenced blocks, with their numbers."""
    inside = {
        number for block in blocks(page) for number in range(block.line - 1, block.line + block.text.count("\n") + 1)
    }
    lines = page.read_text(encoding="utf-8").splitlines()
    return [(number, line) for number, line in enumerate(lines, 1) if number not in inside]


def headings(page: Path) -> list[str]:
    return [match[2] for _, line in prose(page) if (match := _HEADING.match(line))]


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and MyST make them."""
    found: dict[str, int] = {}
    for heading in headings(page):
        text = re.sub(r"[^\w\- ]", "", heading.replace("`", "").strip().lower()).replace(" ", "-")
        found[text] = found.get(text, -1) + 1
    return {f"{text}-{n}" if n else text for text, last in found.items() for n in range(last + 1)}


def links(page: Path) -> list[tuple[int, str]]:
    return [
        (number, match[1])
        for number, line in prose(page)
        for match in _LINK.finditer(_CODE_SPAN.sub(lambda span: "x" * len(span[0]), line))
    ]


def code_spans(page: Path) -> list[tuple[int, str]]:
    return [(number, match[2].strip()) for number, line in prose(page) for match in _CODE_SPAN.finditer(line)]


def section(page: Path, heading: str) -> str:
    """Return the text from a heading to the next one of the same level or a higher one; empty where there is none."""
    lines, level, taken = page.read_text(encoding="utf-8").splitlines(), 0, []
    fenced = {number for block in blocks(page) for number in range(block.line, block.line + block.text.count("\n"))}
    for number, line in enumerate(lines, 1):
        match = None if number in fenced else _HEADING.match(line)
        if match and level and len(match[1]) <= level:
            break
        if match and not level and match[2].replace("`", "") == heading:
            level = len(match[1])
        elif level:
            taken.append(line)
    return "\n".join(taken)
