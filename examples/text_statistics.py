"""Statistics of texts: one child workflow per text, in parallel, and finally two summaries in parallel.

    flowckpt run examples/text_statistics.py -i 'texts=["README.md", "CHANGELOG.md"]'
    flowckpt show --steps RUN

The workflow of one text can be run by itself, too: flowckpt run examples/text_statistics.py:one_text -i text=README.md
"""

import re
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import attrs

from flowckpt import parallel, step, workflow


@attrs.frozen
class Statistics:
    text: str
    words: int
    commonest: list[tuple[str, int]]


def words_of(text: Path) -> list[str]:
    return re.findall(r"[a-zäöüß]+", text.read_text(encoding="utf-8").lower())


def commonest(words: list[str]) -> list[tuple[str, int]]:
    return sorted(Counter(words).items(), key=lambda found: (-found[1], found[0]))[:10]


def longest_text(all_statistics: list[Statistics]) -> str:
    return max(all_statistics, key=lambda each: (each.words, each.text)).text


def all_words(all_statistics: list[Statistics]) -> int:
    return sum(each.words for each in all_statistics)


@workflow
def one_text(text: Path) -> Generator[Any, Any, Statistics]:
    words = yield from step("words").python(words_of, text)
    found = yield from step("commonest").python(commonest, words).checkpoint()
    return Statistics(text.name, len(words), found)


@workflow
def text_statistics(texts: list[Path]) -> Generator[Any, Any, tuple[str, int]]:
    found = yield from step("texts").map(one_text, texts, concurrency=4).checkpoint()
    return (
        yield from parallel(
            step("longest").python(longest_text, found), step("total").python(all_words, found), name="summary"
        ).checkpoint()
    )
