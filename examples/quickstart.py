"""Fetch some pages and write a report: `flowckpt run examples/quickstart.py`."""

import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

from flowckpt import run_sync, step, workflow
from flowckpt.evidence import file_sha256


def fetch(page: int) -> list[int]:
    time.sleep(0.5)  # a slow server
    return [page, page**2]


def write(rows: list[int], target: Path) -> int:
    return target.write_text(f"{len(rows)} rows, sum {sum(rows)}\n")


@workflow("etl")
def etl(pages: int = 6, target: Path = Path("report.txt")) -> Generator[Any, Any, int]:
    rows: list[int] = []
    for page in range(pages):
        rows += yield step("fetch").python(fetch, page).checkpoint()
    yield step("write").python(write, rows, target).evidence(file_sha256(target)).checkpoint()
    return sum(rows)


if __name__ == "__main__":
    print(run_sync(etl).unwrap())
