"""The verifier: packs, moments, quorum, plugins, secrets, and an application's loop that stays live."""

from __future__ import annotations

import asyncio
import hashlib
import importlib.metadata
import logging
import os
import re
import subprocess
import sys
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context

import numpy as np
import pandas as pd
import pytest

from flowckpt.core.system.blocking import blocking_allowed
from flowckpt.evidence import (
    AllowedHost,
    Check,
    Evidence,
    EvidenceError,
    EvidencePack,
    EvidenceType,
    EvidenceVerifier,
    Moment,
    Outcome,
    StepFacts,
    VerdictStatus,
    artifact_exists,
    checks,
    command_exit,
    db_row,
    file_sha256,
    predicate,
)
from flowckpt.evidence.verifier import combine_answers

ABC = hashlib.sha256(b"abc").hexdigest()
YES, NO = Outcome(VerdictStatus.VERIFIED), Outcome(VerdictStatus.FAILED, "it is gone")


# --- packs -----------------------------------------------------------------------------------------------------------


async def test_an_empty_pack_is_no_evidence(verifier):
    """Pitfall 31."""
    for pack in (EvidencePack([]), EvidencePack([], allow_partial=True), EvidencePack([], require_all=False)):
        report = await verifier.verify_evidence_pack(pack)
        assert (report.verified, report.outcome, report.reason) == (False, "no_evidence", "there is no evidence")
    assert await verifier.verify_multiple([]) == {
        "total": 0,
        "verified": 0,
        "failed": 0,
        "success_rate": 0.0,
        "all_passed": False,
    }


async def test_a_report_counts_and_keeps_the_order(base, verifier):
    (base / "f").write_text("abc")
    claims = [artifact_exists("f"), artifact_exists("g"), command_exit(0), predicate(always), file_sha256("f", ABC)]
    report = await verifier.verify_evidence_pack(EvidencePack(claims))
    assert [str(verdict.status) for verdict in report.verdicts] == [
        "verified", "failed", "cannot_check", "verified", "verified",
    ]  # fmt: skip
    assert [verdict.evidence for verdict in report.verdicts] == claims
    assert report.counts == {"total": 5, "verified": 3, "failed": 1, "not_rechecked": 0, "cannot_tell": 1}
    assert (report.total, report.verified_count, report.failed_count) == (5, 3, 1)
    assert (report.verified, report.reason) == (False, "3 of 5 claims hold, 5 required")
    partial = await verifier.verify_evidence_pack(EvidencePack(claims, allow_partial=True, min_verified=3))
    assert partial.verified
    assert await verifier.verify_multiple(claims) == {
        "total": 5,
        "verified": 3,
        "failed": 2,
        "success_rate": 0.6,
        "all_passed": False,
    }
    assert (await verifier.verify_multiple(claims[:1]))["all_passed"] is True


def always():
    return True


async def test_transient_claims_are_checked_at_the_commit_only(base, verifier):
    (base / "f").write_text("abc")
    pack = EvidencePack([artifact_exists("lock").transient(), file_sha256("f", ABC)])
    assert not (await verifier.verify_evidence_pack(pack)).verified
    resumed = await verifier.verify_evidence_pack(pack, moment=Moment.RESUME)
    assert resumed.verified
    assert [str(verdict.status) for verdict in resumed.verdicts] == ["not_rechecked", "verified"]
    assert not resumed.verdicts[0].verified
    only = await verifier.verify_evidence_pack(EvidencePack(pack.evidence_list[:1]), moment=Moment.RESUME)
    assert (only.verified, only.outcome) == (False, "no_evidence")


async def test_a_commit_captures_and_verifies_reading_each_file_once(base, verifier, monkeypatch):
    (base / "f").write_text("abc")
    reads = []
    from flowckpt.evidence import digests

    real = digests._hash_file
    monkeypatch.setattr(digests, "_hash_file", lambda file, *rest: (reads.append(file), real(file, *rest))[1])
    pack = EvidencePack([file_sha256("f"), file_sha256("f", ABC), command_exit(0), artifact_exists("f")])
    recorded, report = await verifier.commit(pack, facts=StepFacts(exit_code=0))
    assert report.verified
    assert len(reads) == 2
    assert [str(claim.state) for claim in recorded] == ["captured", "stated", "stated", "captured"]
    assert (await verifier.verify_evidence_pack(recorded, facts=StepFacts(exit_code=0))).verified


async def test_a_commit_whose_facts_are_not_there_does_not_hold(base, verifier):
    (base / "f").write_text("abc")
    recorded, report = await verifier.commit(EvidencePack([file_sha256("gone"), file_sha256("f", "0" * 64)]))
    assert [str(verdict.status) for verdict in report.verdicts] == ["failed", "failed"]
    assert report.verdicts[0].error == "gone does not exist"
    assert [str(claim.state) for claim in recorded] == ["uncaptured", "stated"]


# --- an application's loop -------------------------------------------------------------------------------------------


async def test_the_loop_stays_live_while_files_are_read(base, verifier):
    with (base / "big").open("wb") as file:
        file.truncate(200_000_000)
    gaps, last = [], None

    async def tick():
        nonlocal last
        loop = asyncio.get_running_loop()
        while True:
            now = loop.time()
            if last is not None:
                gaps.append(now - last)
            last = now
            await asyncio.sleep(0)

    ticking = asyncio.create_task(tick())
    captured = await verifier.capture(file_sha256("big"))
    assert (await verifier.verify_evidence(captured)).verified
    ticking.cancel()
    assert len(gaps) > 100  # a blocked loop would have made two or three turns


async def test_where_blocking_is_allowed_no_thread_is_used(base, verifier):
    (base / "f").write_text("abc")
    seen = []

    class Where(Check):
        def verify(self, claim, context):
            seen.append(threading.current_thread())
            return YES

    claim = Evidence("where", "here", {})
    with blocking_allowed(True):
        await EvidenceVerifier(base, checks={"where": Where()}).verify_evidence(claim)
    await EvidenceVerifier(base, checks={"where": Where()}).verify_evidence(claim)
    assert seen[0] is threading.main_thread()
    assert seen[1] is not threading.main_thread()


# --- quorum ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["threads", "processes"])
async def test_a_quorum_of_distinct_workers_agrees(base, kind):
    (base / "f").write_text("abc")
    context = get_context("forkserver")
    pool = {
        "threads": lambda: ThreadPoolExecutor(3),
        "processes": lambda: ProcessPoolExecutor(3, context, context.Barrier(3).wait),  # no worker is late
    }[kind]()
    verifier = EvidenceVerifier(base, executor=pool)
    yes = await verifier.verify_evidence(file_sha256("f", ABC).quorum(3))
    assert (yes.verified, yes.method) == (True, "quorum"), yes.error
    no = await verifier.verify_evidence(file_sha256("f", "0" * 64).quorum(3))
    assert (no.status, "sha256 recorded" in no.error) == ("failed", True)
    pool.shutdown()


async def test_too_few_workers_are_no_quorum(base):
    (base / "f").write_text("abc")
    with ThreadPoolExecutor(1) as pool:
        verdict = await EvidenceVerifier(base, executor=pool).verify_evidence(file_sha256("f", ABC).quorum(2))
    assert (verdict.verified, verdict.status) == (False, "cannot_check")
    assert "1 of 2 workers answered" in verdict.error


@pytest.mark.parametrize(
    ("answers", "workers", "status"),
    [
        ({"a": [YES], "b": [YES]}, 2, "verified"),
        ({"a": [NO], "b": [NO]}, 2, "failed"),
        ({"a": [YES], "b": [NO]}, 2, "disagreement"),
        ({"a": [YES, NO], "b": [YES]}, 2, "disagreement"),
        ({"a": [YES], "b": [YES], "c": [NO]}, 2, "disagreement"),
        ({"a": [YES]}, 2, "cannot_check"),
        ({}, 2, "cannot_check"),
    ],
)
def test_what_workers_agree_on(answers, workers, status):
    assert combine_answers(answers, workers).status == status


def test_a_disagreement_names_who_said_what():
    outcome = combine_answers({"node1": [YES], "node2": [NO]}, 2)
    assert outcome.error == "the workers disagree: 1 say failed, 1 say verified"
    assert outcome.details == ("node1: verified", "node2: failed (it is gone)")


async def test_workers_that_see_different_worlds_disagree(base):
    """Two real workers in two root directories, as two machines with an unsynchronised share."""
    for name in ("one", "two"):
        (base / name).mkdir()
    (base / "one" / "f").write_text("abc")
    places = iter(["one", "two", *["two"] * 20])
    lock = threading.Lock()

    class Moved(ThreadPoolExecutor):
        def submit(self, call, claim, settings, *rest):
            import attrs

            with lock:
                return super().submit(call, claim, attrs.evolve(settings, base_path=str(base / next(places))), *rest)

    with Moved(2) as pool:
        verdict = await EvidenceVerifier(base, executor=pool).verify_evidence(file_sha256("f", ABC).quorum(2))
    assert verdict.status == "disagreement"
    assert len(verdict.details) >= 2


async def test_a_worker_that_dies_is_no_answer(base):
    (base / "f").write_text("abc")
    pool = ProcessPoolExecutor(1, mp_context=get_context("forkserver"))
    with pytest.raises(Exception):
        pool.submit(os._exit, 1).result()
    verdict = await EvidenceVerifier(base, executor=pool).verify_evidence(file_sha256("f", ABC).quorum(2))
    assert verdict.status == "cannot_check"
    pool.shutdown()


@pytest.mark.parametrize("claim", [command_exit(0), predicate(always)])
async def test_only_the_program_can_answer_some_claims(verifier, claim):
    verdict = await verifier.verify_evidence(claim.quorum(2))
    assert verdict.status == "cannot_check"


# --- kinds of others -------------------------------------------------------------------------------------------------


class EntryPoint:
    """As importlib.metadata gives it."""

    value = "plugin:check"

    def __init__(self, found):
        self.found = found

    def load(self):
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


class Blue(Check):
    def verify(self, claim, context):
        return YES if claim.expected.get("colour") == "blue" else NO


class Broken(Check):
    def verify(self, claim, context):
        raise KeyError("password=hunter2")


async def verdict_of_plugin(monkeypatch, verifier, found, facts):
    monkeypatch.setattr(checks, "_MADE", {})
    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points_of(found), raising=False)
    return await verifier.verify_evidence(Evidence("blue", "it is blue", facts))


def entry_points_of(found):
    def entry_points(*, group, name):
        assert group == "flowckpt.evidence"
        return [EntryPoint(found)] if name == "blue" else []

    return entry_points


@pytest.mark.parametrize(
    ("found", "colour", "status"),
    [
        (Blue, "blue", "verified"),
        (Blue(), "red", "failed"),
        (Broken, "blue", "cannot_check"),
        (ImportError("no such module"), "blue", "cannot_check"),
        (object(), "blue", "cannot_check"),
        (Check, "blue", "cannot_check"),
    ],
)
async def test_a_plugin_adds_a_kind_and_cannot_break_the_verifier(monkeypatch, verifier, found, colour, status):
    verdict = await verdict_of_plugin(monkeypatch, verifier, found, {"colour": colour})
    assert verdict.status == status, verdict.error


async def test_a_check_of_the_program_precedes_a_loaded_plugin(monkeypatch, verifier):
    verdict = await verdict_of_plugin(monkeypatch, verifier, Blue, {"colour": "blue"})
    assert verdict.status == "verified", verdict.error

    class Never(Check):
        def verify(self, claim, context):
            return NO

    own = EvidenceVerifier(checks={"blue": Never(), "predicate": Never()})
    assert (await own.verify_evidence(Evidence("blue", "it is blue", {"colour": "blue"}))).status == "failed"
    assert not isinstance(checks.find_check("predicate", own._checks), Never)


async def test_an_installed_plugin_is_found(base, tmp_path):
    """The real mechanism: a distribution's metadata on the path."""
    info = tmp_path / "blue-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: blue\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[flowckpt.evidence]\nblue = blue_plugin:Blue\nfile_sha256 = blue_plugin:Blue\n"
    )
    (tmp_path / "blue_plugin.py").write_text(
        "from flowckpt.evidence import Check, Outcome, VerdictStatus\n"
        "class Blue(Check):\n"
        "    def verify(self, claim, context):\n"
        "        return Outcome(VerdictStatus.VERIFIED)\n"
    )
    code = (
        "import asyncio\n"
        "from flowckpt.evidence import Evidence, EvidenceVerifier, file_sha256\n"
        "v = EvidenceVerifier()\n"
        "print(asyncio.run(v.verify_multiple([Evidence('blue', 'b', {})]))['verified'])\n"
        "print(asyncio.run(v.verify_evidence(file_sha256('none', 'a' * 64))).verified)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.getcwd()])}
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=base, env=environment)
    assert ended.stdout.split() == ["1", "False"], ended.stderr  # its own kind; never one of ours


async def test_unknown_kinds_do_not_hide_the_other_answers(base, verifier):
    (base / "f").write_text("abc")
    claims = [Evidence("quantum", "spin", {}), file_sha256("f", ABC), Evidence("quantum", "spin", {}).quorum(3)]
    recorded, report = await verifier.commit(EvidencePack(claims, allow_partial=True))
    assert recorded.evidence_list[0] == claims[0]
    assert [str(verdict.status) for verdict in report.verdicts] == ["cannot_check", "verified", "cannot_check"]


@pytest.mark.parametrize("kind", ["os", "base", "reading", "../verifier", "file_words", "__init__", "a.b"])
async def test_a_kind_is_looked_up_and_never_imported(verifier, kind):
    modules = set(sys.modules)
    assert (await verifier.verify_evidence(Evidence(kind, "claim", {}))).status == "cannot_check"
    assert {name for name in sys.modules if name not in modules and "evidence" in name} == set()


# --- secrets ---------------------------------------------------------------------------------------------------------

NAMES = ["Authorization", "token", "password", "api_key", "X-Api-Key", "db_passwd", "client_secret", "Cookie",
         "Proxy-Authorization", "access_key", "private-key", "session_id", "credentials", "jwt", "PASSPHRASE"]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
async def test_what_stands_under_the_name_of_a_secret_is_never_shown(base, name, caplog):
    class Talking(Check):
        def verify(self, claim, context):
            raise RuntimeError(f"tried with {claim.metadata!r} and {claim.expected!r}")

    claim = Evidence("talking", "x", {"deep": [{name: "hunter2-value"}]}, {name: {"inner": "hunter3-value"}})
    with caplog.at_level(logging.DEBUG):
        verdict = await EvidenceVerifier(base, checks={"talking": Talking()}).verify_evidence(claim)
    for told in (repr(claim), repr(verdict), verdict.error, str(verdict.to_document()), caplog.text):
        assert "hunter2" not in told
        assert "hunter3" not in told
    assert "RuntimeError" in verdict.error
    back = Evidence.from_document(claim.to_document())
    assert back == claim  # the record keeps what a check needs


@pytest.mark.parametrize("name", ["author", "authors", "path", "table", "spinning", "key", "n"])
def test_other_names_are_shown(name):
    assert "hunter2" in repr(Evidence("x", "d", {name: "hunter2"}))


async def test_urls_lose_user_and_query_wherever_they_stand(base):
    class Talking(Check):
        def verify(self, claim, context):
            raise RuntimeError("GET https://me:hunter2@host/path?sig=hunter3 failed")

    verdict = await EvidenceVerifier(base, checks={"talking": Talking()}).verify_evidence(Evidence("talking", "x", {}))
    assert "https://host/path?…" in verdict.error
    assert "hunter" not in verdict.error


def test_the_headers_of_a_host_are_not_in_its_repr():
    assert "hunter2" not in repr(AllowedHost("h", 1, {"X-Plain": "hunter2"}))


async def test_a_report_holds_nothing_that_a_terminal_obeys(base, verifier):
    for path in ("a\x1b[2Jb", "a\nb", "\u202eevil", "\udcff\udcfe"):
        verdict = await verifier.verify_evidence(artifact_exists(path))
        assert verdict.error.isprintable()
        verdict.error.encode()


# --- definitions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["", "fast", None, True])
def test_a_mode_is_stat_or_hash(base, mode):
    with pytest.raises(EvidenceError):
        EvidenceVerifier(base, mode=mode)


def test_one_host_is_still_a_list(base):
    with pytest.raises(EvidenceError):
        EvidenceVerifier(base, allow_network="localhost:80")


def test_the_table_of_kinds_is_the_list_of_kinds():
    assert set(checks.TABLE) == {str(kind) for kind in EvidenceType}


@pytest.mark.parametrize(
    "value",
    [np.float64(1.5), np.int64(2), np.str_("x"), pd.Timestamp("2026-01-01"), [np.int64(1)], {"a": np.float32(1)}],
)
def test_a_value_that_cannot_be_recorded_is_refused_before_the_effect(value):
    with pytest.raises(EvidenceError, match=r"a claim cannot be recorded: values\['amount'\]"):
        db_row("a.db", "payments", {"order": 7}, {"amount": value})


def test_writing_claims_imports_nothing_of_what_checks_them():
    code = (
        "import sys\n"
        "from flowckpt.evidence import *\n"
        "from flowckpt.evidence import Evidence, EvidencePack, file_sha256, db_row, api_response\n"
    )
    code = code.replace("from flowckpt.evidence import *\n", "import flowckpt.evidence\n")
    code += (
        "EvidencePack([file_sha256('f'), db_row('a.db', 't', {'a': 1}), api_response('http://h/')])\n"
        "print([name for name in ('sqlite3', 'http.client', 'ssl', 'socket', 'hashlib', 'asyncio', 'concurrent.futures',"
        " 'flowckpt.evidence.verifier', 'flowckpt.core.codec') if name in sys.modules])\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.stdout.strip() == "[]", ended.stdout + ended.stderr


def test_every_name_of_the_front_door_is_there():
    import flowckpt.evidence as evidence

    for name in evidence.__all__:
        assert getattr(evidence, name).__doc__ or re.match(r"[A-Z]", name)
    with pytest.raises(AttributeError):
        evidence.nothing
