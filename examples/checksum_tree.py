"""The checksums of all files in a folder, computed in parallel; after a kill, it continues with the remaining files.

    flowckpt run examples/checksum_tree.py -i folder=/usr/include -i manifest=include.sha256
    flowckpt resume --last

Each file is a step of its own, named by its path: a file that comes or goes later is another item, and no other file is
read again for it. The list has the form of sha256sum, so `sha256sum --check` can read it.
"""

import hashlib
from collections.abc import Generator
from pathlib import Path
from typing import Any

from flowckpt import step, workflow
from flowckpt.evidence import file_sha256


def files_of(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def checksum(item: tuple[Path, str]) -> str:
    folder, name = item
    with (folder / name).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def name_of(item: tuple[Path, str]) -> str:
    name = item[1]
    return name if len(name) <= 200 else hashlib.sha256(name.encode()).hexdigest()


def write_manifest(manifest: Path, names: list[str], digests: list[str]) -> int:
    new = manifest.with_suffix(".new")
    new.write_text("".join(f"{digest}  {name}\n" for name, digest in zip(names, digests, strict=True)))
    new.rename(manifest)
    return len(names)


@workflow
def checksum_tree(folder: Path, manifest: Path) -> Generator[Any, Any, int]:
    names = yield from step("files").python(files_of, folder).checkpoint()
    items = [(folder, name) for name in names]
    digests = yield from step("checksums").map(checksum, items, key=name_of, concurrency=8).checkpoint()
    written = step("manifest").python(write_manifest, manifest, names, digests)
    return (yield from written.evidence(file_sha256(manifest)).checkpoint())
