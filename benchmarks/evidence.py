"""The cost of verification: a large file against `hashlib.file_digest`, many unchanged small ones against `os.stat`."""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from pathlib import Path

from benchmarks.figure import Figure, time_in_turn
from flowckpt.core.system.blocking import blocking_allowed
from flowckpt.evidence import EvidencePack, EvidenceVerifier, directory_digest, file_sha256


def large_file(directory: Path, size: int, rounds: int) -> list[Figure]:
    """Measure one large file against `hashlib.file_digest` (a speed of 0.9 is a time of 1.11)."""
    path = directory / "large.bin"
    with path.open("wb") as file:
        block = os.urandom(1 << 20)
        for _ in range(size >> 20):
            file.write(block)
    verifier = EvidenceVerifier(directory)
    claim = asyncio.run(verifier.capture(file_sha256("large.bin")))

    def ours() -> float:
        async def verify() -> float:
            began = time.perf_counter()
            verdict = await verifier.verify_evidence(claim)
            taken = time.perf_counter() - began
            assert verdict.method == "hash", verdict
            return taken

        return asyncio.run(verify())

    def plain() -> float:
        began = time.perf_counter()
        with path.open("rb") as file:
            hashlib.file_digest(file, "sha256")
        return time.perf_counter() - began

    mine, base, ratio = time_in_turn(ours, plain, rounds)
    path.unlink()
    detail = f"{size / mine / 1e9:.2f} GB/s; plain {size / base / 1e9:.2f} GB/s; {1 / ratio:.2f} of its speed"
    return [Figure("verify one large file / hashlib.file_digest", ratio, 1 / 0.9, detail=detail)]


def unchanged_files(directory: Path, count: int, rounds: int) -> list[Figure]:
    """Measure many unchanged small files in the mode `stat`: as one claim each, and as one tree."""
    root = directory / "many"
    paths = [root / f"{number % 100:02d}" / f"{number:05d}.txt" for number in range(count)]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(path.name)
    texts = [str(path) for path in paths]
    time.sleep(0.1)  # the signature of a file written in the current clock tick is not recorded
    verifier = EvidenceVerifier(directory, mode="stat")
    relative = [str(path.relative_to(directory)) for path in paths]
    packs = {
        "files, each a claim": EvidencePack([file_sha256(path) for path in relative]),
        "files, one tree": EvidencePack([directory_digest("many")]),
    }

    def plain() -> float:
        began = time.perf_counter()
        for text in texts:
            os.stat(text)
        return time.perf_counter() - began

    figures = []
    for name, pack in packs.items():
        captured, report = asyncio.run(verifier.commit(pack))
        assert report.verified, report.reason

        def ours(captured: EvidencePack = captured) -> float:
            async def verify() -> float:
                with blocking_allowed(True):
                    began = time.perf_counter()
                    report = await verifier.verify_evidence_pack(captured)
                    taken = time.perf_counter() - began
                assert report.verified
                assert {verdict.method for verdict in report.verdicts} == {"stat"}
                return taken

            return asyncio.run(verify())

        mine, base, ratio = time_in_turn(ours, plain, rounds)
        detail = f"{mine / count * 1e6:.1f} µs a file; os.stat {base / count * 1e6:.1f} µs"
        figures.append(Figure(f"re-verify {count} unchanged {name} / os.stat", ratio, 5.0, detail=detail))
    return figures
