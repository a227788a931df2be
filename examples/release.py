"""A release that waits for a time, for a person's approval of a file's content, and for a signal from another program.

flowckpt run examples/release.py --id monday     # suspended, exit code 3
flowckpt approve monday release --by ann
flowckpt resume monday
flowckpt signal monday mirrored --data '{"servers": 3}' --resume
"""

from collections.abc import Generator
from pathlib import Path
from typing import Any

import attrs

from flowckpt import step, workflow
from flowckpt.evidence import file_sha256


@attrs.frozen
class Mirrored:
    servers: int


def build(lines: int) -> str:
    Path("release.txt").write_text("a line\n" * lines)
    return "release.txt"


def publish(file: str, by: str) -> str:
    return f"{file}, approved by {by}, is published"


@workflow("release")
def release(lines: int = 3, settle: float = 0.1) -> Generator[Any, Any, list[str]]:
    file = yield from step("build").python(build, lines).evidence(file_sha256("release.txt")).checkpoint()
    yield step("settle").sleep(settle)
    approval = yield from step("release").approval(of=[file_sha256(file)])
    published = yield from step("publish").python(publish, file, approval.by).checkpoint()
    mirrored = yield from step("mirror").wait("mirrored", type=Mirrored, timeout=7 * 86_400)
    return [published, f"on {mirrored.servers} servers"]
