"""Find phrases that stop a reader: `python -m tests.english` lists them; `tests/test_english.py` allows none."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import attrs

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "flowckpt"

PHRASES = {
    "is not a …": r"\b(?:is|are|was|were) (?:no|none)\b",
    "again, from the start, new": r"\banew\b",
    "resume, continue": r"\b(?:go|goes|going|gone|went|carr(?:y|ies|ied|ying)) on\b",
    "after": r"\bbehind\b",
    "forever": r"\bfor ever\b",
    "heartbeat": r"\bsigns? of life\b",
    "emit, report": r"\b(?:is|are|was|were|be|been) told\b",
    "say what is unknown, missing or not done": r"\b[Nn]obody\b",
    "the process, the caller, the person": r"\b[Ww]hoever\b|\b[Ww]ho (?:wants?|works?|uses?)\b",
    "in parallel": r"\bbeside each other\b",
    "crash loop": r"\bkeeps? dying\b",
    "previous owner, new owner": r"\brobbed\b|\bthie(?:f|ves)\b",
    "return whether": r"^(?:Tell|Say) whether\b",
    "anyway, still": r"\ball the same\b",
    "cannot be used": r"\bmakes? no sense\b",
    "available": r"\bat hand\b",
    "repair": r"\bmend(?:s|ed)?\b",
    "migrate": r"\bbr(?:ing|ings|ought) (?:\w+ ){0,3}forward\b",
    "all users, any process": r"\b[Ee]verybody\b|\b[Aa]nybody\b",
}
"""Patterns of phrases that stop a reader, by the replacement."""

ALLOWED = {
    "plain English for 'does not exist'": r"\b[Tt]here (?:is|are|was|were) (?:no|none)\b",
    "a time, not a denial": r"\b(?:is|are|was|were) no (?:longer|more)\b",
    "what remains, not what follows": r"\b(?:left|leaves?|lags?)(?: \w+){0,4} behind\b",
    "reasons lie behind a choice": r"\breasons? behind\b",
    "distinguished, not informed": r"\btold apart\b",
}
"""Acceptable phrases that match the patterns above, by the reason."""

SUBJECT_FIRST = "put the subject first"
_RELATIVE_START = re.compile(r"(?:Who|Whoever|What|Where) ")
_ALLOWED = re.compile("|".join(ALLOWED.values()))
_PATTERNS = {better: re.compile(pattern) for better, pattern in PHRASES.items()}
_SENTENCE_END = re.compile(r"(?<=[.!?:;|\n])[\s*_]+")
_MARKER = re.compile(r"^[\s>|*_-]*(?:\d+\. )?[*_]*")
_CODE_SPAN = re.compile(r"(`+)(.+?)\1")
_FENCE = re.compile(r"^ *(`{3,}|:{3,})")
_DESCRIBED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@attrs.frozen
class Finding:
    """A phrase: its place, the text, and what to write instead."""

    place: str
    text: str
    better: str

    def __str__(self) -> str:
        return f"{self.place}: {' '.join(self.text.split()):.120} [{self.better}]"


def phrases(text: str) -> list[str]:
    """Return what to write instead of each phrase in a text."""
    text = _ALLOWED.sub("…", text)
    found = [better for better, pattern in _PATTERNS.items() for _ in pattern.finditer(text)]
    sentences = (_MARKER.sub("", each) for each in _SENTENCE_END.split(text))
    found += [
        SUBJECT_FIRST for each in sentences if _RELATIVE_START.match(each) and not each.rstrip("*_ |").endswith("?")
    ]
    return found


# --- the package -----------------------------------------------------------------------------------------------------


def texts_of(source: str) -> Iterator[tuple[int, str]]:
    """Return the first line of each docstring, and every other string of more than one word, with their lines."""
    tree = ast.parse(source)
    docstrings, parts = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            docstrings.add(node.value)
        elif isinstance(node, ast.JoinedStr):
            parts |= {each for each in node.values if isinstance(each, ast.Constant)}
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if node in docstrings:
                yield node.lineno, text.strip().partition("\n")[0]
            case ast.Constant(value=str(text)) if node not in parts and " " in text:
                yield node.lineno, text
            case ast.JoinedStr():
                pieces = (each.value if isinstance(each, ast.Constant) else "…" for each in node.values)
                yield node.lineno, "".join(map(str, pieces))


def _in_package() -> Iterator[Finding]:
    for file in sorted(PACKAGE.rglob("*.py")):
        for line, text in texts_of(file.read_text("utf-8")):
            for better in phrases(text):
                yield Finding(f"{file.relative_to(ROOT).as_posix()}:{line}", text, better)


# --- the pages -------------------------------------------------------------------------------------------------------


def prose_of(page: str) -> Iterator[tuple[int, str]]:
    """Return the lines outside of fenced blocks, without headings and code spans, with their numbers."""
    fence = ""
    for number, line in enumerate(page.splitlines(), 1):
        if match := _FENCE.match(line):
            if not fence:
                fence = match[1]
            elif match[1].startswith(fence):
                fence = ""
        elif not fence and not line.startswith("#"):
            yield number, _CODE_SPAN.sub("`…`", line)


def _in_pages() -> Iterator[Finding]:
    for file in [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        place = file.relative_to(ROOT)
        for line, text in prose_of(file.read_text("utf-8")):
            for better in phrases(text):
                yield Finding(f"{place.as_posix()}:{line}", text, better)


def findings() -> list[Finding]:
    """Return the phrases in the package's texts and in the pages."""
    return [*_in_package(), *_in_pages()]


if __name__ == "__main__":
    print(*findings(), sep="\n")
