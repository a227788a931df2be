r"""The conformance tests of a kind of evidence, as a class to subclass.

::

    class TestLineCount(EvidenceContract):
        check = LineCount()

        def make_claim(self):
            Path("rows.csv").write_text("a\nb\n")
            return Evidence("line_count", "the rows", {"path": "rows.csv", "lines": 2})

        def break_claim(self):
            Path("rows.csv").write_text("a\n")

Each test runs in an empty directory of its own.
"""

# ruff: noqa: D102 - the name of a test is its docstring

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, ClassVar

import attrs
import pytest

from flowckpt.evidence import Check, Evidence, EvidencePack, EvidenceVerifier


class EvidenceContract:
    """The conformance tests of a kind of evidence. Subclass it with `make_claim` and `break_claim`.

    Attributes:
        check: the check under test; None if it is installed by its entry point.
    """

    is_flowckpt_contract: ClassVar[bool] = True
    check: ClassVar[Check | None] = None

    def make_claim(self) -> Evidence:
        """Make the claim true, and return it. Called once per test."""
        raise NotImplementedError

    def break_claim(self) -> None:
        """Change files or other facts so that the claim no longer holds."""
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)

    def verifier(self, claim: Evidence) -> EvidenceVerifier:
        """Return a verifier of the claim in the current directory."""
        own = {} if self.check is None else {str(claim.evidence_type): self.check}
        return EvidenceVerifier(Path.cwd(), checks=own)

    async def test_a_claim_that_holds_is_verified_every_time(self) -> None:
        claim = self.make_claim()
        for _ in range(2):
            verdict = await self.verifier(claim).verify_evidence(claim)
            assert verdict.verified, verdict.error

    async def test_a_claim_that_no_longer_holds_fails_and_says_why(self) -> None:
        claim = self.make_claim()
        assert (await self.verifier(claim).verify_evidence(claim)).verified
        self.break_claim()
        verdict = await self.verifier(claim).verify_evidence(claim)
        assert not verdict.verified
        assert verdict.error

    async def test_a_recorded_claim_is_verified_like_the_first_one(self) -> None:
        claim = self.make_claim()
        pack = EvidencePack.from_document(EvidencePack([claim]).to_document())
        assert (await self.verifier(claim).verify_evidence_pack(pack)).verified
        self.break_claim()
        assert not (await self.verifier(claim).verify_evidence_pack(pack)).verified

    async def test_a_claim_without_its_facts_is_never_verified(self) -> None:
        claim = self.make_claim()
        empty: Any = attrs.evolve(claim, expected={}, metadata={})
        verdict = await self.verifier(claim).verify_evidence(empty)
        assert not verdict.verified
        assert verdict.error

    async def test_verifying_changes_no_file(self) -> None:
        claim = self.make_claim()
        before = _digest_files()
        await self.verifier(claim).verify_evidence(claim)
        assert _digest_files() == before


def _digest_files() -> dict[str, str]:
    return {
        str(each): hashlib.sha256(each.read_bytes()).hexdigest() for each in Path.cwd().rglob("*") if each.is_file()
    }
