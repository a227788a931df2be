"""Which kinds of files are in a folder: `flowckpt run examples/quickstart.py -i folder=..`."""

import json
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

from flowckpt import run_sync, step, workflow


def extract(folder: Path) -> list[str]:
    return sorted(path.suffix for path in folder.rglob("*.*") if path.is_file())


def transform(suffixes: list[str]) -> dict[str, int]:
    return dict(Counter(suffixes).most_common())


def load(kinds: dict[str, int], target: Path) -> int:
    return target.write_text(json.dumps(kinds, indent=2))


@workflow("etl")
def etl(folder: Path = Path(), target: Path = Path("kinds.json")) -> Generator[Any, Any, int]:
    suffixes = yield step("extract").python(extract, folder).checkpoint()
    kinds = yield step("transform").python(transform, suffixes).checkpoint()
    yield step("load").python(load, kinds, target).checkpoint()
    return len(kinds)


if __name__ == "__main__":
    print(run_sync(etl).unwrap())
