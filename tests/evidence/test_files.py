"""`artifact_exists`, `file_sha256`, `directory_digest`: true, false, missing, malformed, hostile."""

from __future__ import annotations

import hashlib
import os
import re
import socket
import stat
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path

import pytest

from flowckpt.core.system.clock import SystemClock
from flowckpt.evidence import (
    Evidence,
    EvidenceCaptureError,
    EvidencePack,
    EvidenceType,
    EvidenceVerifier,
    Limits,
    Moment,
    artifact_exists,
    directory_digest,
    file_sha256,
)
from flowckpt.evidence.checks.base import Deadline, UncheckableClaimError
from flowckpt.evidence.digests import digest_path, is_signature_reliable
from flowckpt.evidence.sandbox import PathRefusedError, Sandbox
from tests.open_files import open_below

ABC = hashlib.sha256(b"abc").hexdigest()
FILE_KINDS = [EvidenceType.ARTIFACT_EXISTS, EvidenceType.FILE_SHA256, EvidenceType.DIRECTORY_DIGEST]


def claim_of(kind, path):
    facts = {"artifact_exists": {}, "file_sha256": {"sha256": ABC}, "directory_digest": {"digest": ABC}}[kind]
    return Evidence(kind, "a claim", {"path": path, **facts})


# --- the tables -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "wanted", "status"),
    [
        ("file", "file", "verified"),
        ("file", "any", "verified"),
        ("file", "directory", "failed"),
        ("dir", "directory", "verified"),
        ("dir", "any", "verified"),
        ("dir", "file", "failed"),
        ("dir/", "directory", "verified"),
        ("./dir/../file", "file", "verified"),
        ("dir/./inner", "file", "verified"),
        (".", "directory", "verified"),
        ("link", "file", "verified"),
        ("dirlink/inner", "file", "verified"),
        ("absolute-link", "file", "verified"),
        ("dangling", "any", "failed"),
        ("missing", "any", "failed"),
        ("missing/below", "any", "failed"),
        ("file/below", "any", "failed"),
        ("file", "socket", "malformed"),
        ("file", None, "malformed"),
        ("file", 1, "malformed"),
    ],
)
async def test_artifact_exists(base, verifier, path, wanted, status):
    (base / "file").write_text("abc")
    (base / "dir").mkdir()
    (base / "dir" / "inner").write_text("")
    (base / "link").symlink_to("dir/../file")
    (base / "dirlink").symlink_to("dir")
    (base / "absolute-link").symlink_to(base / "file")
    (base / "dangling").symlink_to("nowhere")
    verdict = await verifier.verify_evidence(
        Evidence(EvidenceType.ARTIFACT_EXISTS, "it exists", {"path": path, "type": wanted})
    )
    assert verdict.status == status
    assert verdict.verified is (status == "verified")
    assert (verdict.error is None) is verdict.verified


@pytest.mark.parametrize(
    ("content", "digest", "status"),
    [
        (b"abc", ABC, "verified"),
        (b"abc", ABC.upper(), "verified"),  # pitfall 33
        (b"abc", f"sha256:{ABC}", "verified"),
        (b"abd", ABC, "failed"),
        (b"", ABC, "failed"),
        (None, ABC, "failed"),
        (b"", hashlib.sha256().hexdigest(), "verified"),
        (b"abc", ABC[:-1], "malformed"),
        (b"abc", ABC + "0", "malformed"),
        (b"abc", ABC + "\n", "malformed"),
        (b"abc", "g" * 64, "malformed"),
        (b"abc", "", "malformed"),
        (b"abc", None, "malformed"),
        (b"abc", True, "malformed"),
        (b"abc", ABC.encode(), "malformed"),
        (b"abc", "\u0660" * 64, "malformed"),  # digits, but not ours
    ],
)
async def test_file_sha256(base, verifier, content, digest, status):
    if content is not None:
        (base / "f").write_bytes(content)
    claim = Evidence(EvidenceType.FILE_SHA256, "content", {"path": "f", "sha256": digest})
    assert (await verifier.verify_evidence(claim)).status == status


@pytest.mark.parametrize("size", [0, 1, (1 << 18) - 1, 1 << 18, (1 << 18) + 1, 3_000_001])
async def test_the_digest_is_right_at_every_size(base, verifier, size):
    data = os.urandom(size)
    (base / "f").write_bytes(data)
    captured = await verifier.capture(file_sha256("f"))
    assert captured.expected["sha256"] == hashlib.sha256(data).hexdigest()
    assert (await verifier.verify_evidence(captured)).verified


async def test_a_claim_that_was_never_captured_is_not_verified(base, verifier):
    (base / "f").write_text("abc")
    verdict = await verifier.verify_evidence(file_sha256("f"))
    assert (verdict.verified, verdict.status) == (False, "uncaptured")


async def test_capturing_what_is_not_there_is_an_error_that_names_it(verifier):
    for claim in (file_sha256("gone.csv"), directory_digest("gone.csv"), artifact_exists("gone.csv")):
        with pytest.raises(EvidenceCaptureError, match=re.escape("gone.csv does not exist")):
            await verifier.capture(claim)


async def test_a_verdict_goes_down_to_the_leaf(base, verifier):
    file = base / "rows.csv"
    file.write_text("old")
    captured = await verifier.capture(file_sha256("rows.csv"))
    file.write_text("newer")
    later = captured.captured.at.timestamp() + 2 * 3600 + 60
    os.utime(file, (later, later))
    verdict = await verifier.verify_evidence(captured)
    old, new = (hashlib.sha256(data).hexdigest()[:8] for data in (b"old", b"newer"))
    assert verdict.error == (
        f"rows.csv: sha256 recorded {old}…, found {new}…; 5 bytes, were 3; changed 2 h after the checkpoint"
    )


async def test_a_file_replaced_by_an_older_one_is_said_to_be(base, verifier):
    (base / "f").write_text("old")
    captured = await verifier.capture(file_sha256("f"))
    (base / "f").write_text("new")
    os.utime(base / "f", (0, 0))
    assert "though its modification time is" in (await verifier.verify_evidence(captured)).error


# --- pitfalls 34 and 35 ----------------------------------------------------------------------------------------------


async def test_a_claim_is_checked_anew_each_time(base, verifier):
    """Pitfall 34: once verified, never again."""
    (base / "f").write_text("abc")
    captured = await verifier.capture(file_sha256("f"))
    assert (await verifier.verify_evidence(captured)).verified
    (base / "f").unlink()
    assert (await verifier.verify_evidence(captured)).status == "failed"


async def test_a_half_written_artifact_does_not_count_as_there(base, verifier):
    """Pitfall 35."""
    (base / "f").write_text("the whole text")
    captured = await verifier.capture(artifact_exists("f", "file"))
    assert (await verifier.verify_evidence(captured)).verified
    (base / "f").write_text("the whole te")
    verdict = await verifier.verify_evidence(captured)
    assert verdict.status == "failed"
    assert "14 bytes recorded, only 12 found" in verdict.error


@pytest.mark.parametrize("claim", [artifact_exists("f"), file_sha256("f"), directory_digest("d")])
async def test_what_a_step_in_doubt_left_proves_nothing_but_its_absence_does(base, verifier, claim):
    """Pitfall 35, in doubt: a file that is there may be half written; one that is not there was not made."""
    assert (await verifier.verify_evidence(claim, moment=Moment.IN_DOUBT)).status == "failed"
    (base / "f").write_text("half")
    (base / "d").mkdir()
    verdict = await verifier.verify_evidence(claim, moment=Moment.IN_DOUBT)
    assert (verdict.verified, verdict.can_tell) == (False, False)


# --- hostile paths: pitfall 33 --------------------------------------------------------------------------------------

ESCAPES = [
    "../outside/secret.txt",
    "..",
    "../",
    "../base/../outside/secret.txt",
    "dir/../../outside/secret.txt",
    "./.././outside/secret.txt",
    "dir/../dir/../../outside",
    "/etc/passwd",
    "/",
    "//etc/passwd",
    "/proc/self/environ",
    "/dev/zero",
    "link-out",
    "link-out-relative",
    "dirlink-out/secret.txt",
    "chain",
    "link-to-root/etc/passwd",
    "loop",
    "dir/up/../../outside/secret.txt",
    "{base}-sibling/f",
    "{base}/../outside/secret.txt",
    "{base}/link-out",
]


@pytest.mark.parametrize("kind", FILE_KINDS)
@pytest.mark.parametrize("path", ESCAPES)
async def test_no_path_leaves_the_base_path(base, verifier, kind, path):
    (base / "dir").mkdir()
    (base / "dir" / "up").symlink_to("..")
    (base / "link-out").symlink_to(base.parent / "outside" / "secret.txt")
    (base / "link-out-relative").symlink_to("../outside/secret.txt")
    (base / "dirlink-out").symlink_to(base.parent / "outside")
    (base / "chain").symlink_to("link-out-relative")
    (base / "link-to-root").symlink_to("/")
    (base / "loop").symlink_to("loop")
    sibling = base.parent / "base-sibling"
    sibling.mkdir()
    (sibling / "f").write_text("abc")
    verdict = await verifier.verify_evidence(claim_of(kind, path.format(base=base)))
    assert (verdict.verified, verdict.status) == (False, "refused"), verdict.error


@pytest.mark.parametrize("kind", FILE_KINDS)
@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("", "malformed"),
        ("a\0b", "malformed"),
        (None, "malformed"),
        (3, "malformed"),
        (b"file", "malformed"),
        (["file"], "malformed"),
        ({"path": "file"}, "malformed"),
        ("x" * 300, "cannot_check"),
        ("x/" * 5000, "failed"),
        ("~/file", "failed"),
        ("$HOME", "failed"),
        ("*", "failed"),
        ("\udcff", "failed"),
        ("a\nb\x1b[31m", "failed"),
        ("fifo/below", "failed"),
    ],
)
async def test_odd_paths_are_right_or_refused(base, verifier, kind, path, status):
    os.mkfifo(base / "fifo")
    verdict = await verifier.verify_evidence(claim_of(kind, path))
    assert verdict.status == status, verdict.error
    assert verdict.error.isprintable()


async def test_an_absolute_path_inside_the_base_path_is_right(base, verifier):
    (base / "f").write_text("abc")
    assert (await verifier.verify_evidence(file_sha256(base / "f", ABC))).verified


async def test_a_base_path_may_itself_be_a_link(base, tmp_path):
    (base / "f").write_text("abc")
    (tmp_path / "alias").symlink_to(base)
    verifier = EvidenceVerifier(tmp_path / "alias")
    for path in ("f", tmp_path / "alias" / "f", base / "f"):
        assert (await verifier.verify_evidence(file_sha256(path, ABC))).verified


async def test_absolute_paths_lead_out_only_where_that_is_allowed(base, tmp_path):
    (base / "out").symlink_to(tmp_path / "outside" / "secret.txt")
    free = EvidenceVerifier(base, allow_absolute=True)
    assert (await free.verify_evidence(artifact_exists(tmp_path / "outside" / "secret.txt"))).verified
    assert (await free.verify_evidence(artifact_exists("../outside/secret.txt"))).status == "refused"
    assert (await free.verify_evidence(artifact_exists("out"))).status == "refused"


async def test_a_base_path_that_is_gone_answers_nothing(tmp_path):
    verdict = await EvidenceVerifier(tmp_path / "unmounted").verify_evidence(artifact_exists("f"))
    assert (verdict.status, verdict.can_tell) == ("cannot_check", False)


SWAPS = {
    "a directory for a link": ("dir", "dir/secret.txt", lambda base: (base / "dir").symlink_to("../outside")),
    "a file for a link": ("secret.txt", "secret.txt", lambda base: link_out(base)),
    "a file for a pipe": ("secret.txt", "secret.txt", lambda base: os.mkfifo(base / "secret.txt")),
}


def link_out(base):
    (base / "secret.txt").symlink_to("../outside/secret.txt")


@pytest.mark.parametrize("swap", SWAPS)
@pytest.mark.timeout(120)
def test_what_is_swapped_between_the_look_and_the_opening_is_not_followed(base, monkeypatch, swap):
    (base / "dir").mkdir()
    (base / "dir" / "secret.txt").write_text("ours")
    (base / "secret.txt").write_text("ours")
    name, path, replace = SWAPS[swap]
    real, swapped = os.open, []

    def open_after_the_swap(target, *rest, **more):
        if target == name and not swapped:
            swapped.append((base / name).rename(base / "away"))
            replace(base)
        return real(target, *rest, **more)

    monkeypatch.setattr(os, "open", open_after_the_swap)
    with Sandbox(str(base)) as sandbox, pytest.raises((PathRefusedError, OSError)):
        os.close(sandbox.open_file(path))
    assert swapped


def test_a_link_swapped_during_the_walk_is_never_followed_out(base):
    """Two threads: one swaps a link inside for one that leads out, the other reads through it."""
    (base / "real").mkdir()
    (base / "real" / "secret.txt").write_text("ours")
    spare, place, stop = base / "spare", base / "place", threading.Event()

    def swap():
        while not stop.is_set():
            for target in (base.parent / "outside", "real"):
                spare.symlink_to(target)
                spare.replace(place)

    place.symlink_to("real")
    thread = threading.Thread(target=swap)
    thread.start()
    seen, count, until = set(), 0, time.monotonic() + 120
    try:
        while (count < 2_000 or len(seen) < 2) and time.monotonic() < until:
            count += 1
            with Sandbox(str(base)) as sandbox:
                try:
                    file = sandbox.open_file("place/secret.txt")
                except (PathRefusedError, OSError):
                    seen.add("refused")
                else:
                    seen.add(os.read(file, 10))
                    os.close(file)
    finally:
        stop.set()
        thread.join()
    assert seen == {b"ours", "refused"}


def test_a_sandbox_lets_go_of_every_descriptor(base):
    for number in range(100):
        (base / f"d{number}").mkdir()
        (base / f"d{number}" / "f").write_text("x")
    with Sandbox(str(base)) as sandbox:
        for number in range(100):
            sandbox.status(f"d{number}/f")
            os.close(sandbox.open_file(f"d{number}/f", follow=False))
        with pytest.raises(FileNotFoundError):
            sandbox.status("d1/none/none")
        assert open_below(base)
    assert open_below(base) == []


# --- what is not a file -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("thing", ["fifo", "socket", "dir", "zero", "link-to-fifo"])
@pytest.mark.timeout(120)
async def test_only_regular_files_are_read(base, thing):
    os.mkfifo(base / "fifo")
    (base / "link-to-fifo").symlink_to("fifo")
    (base / "dir").mkdir()
    with socket.socket(socket.AF_UNIX) as bound:
        here = Path.cwd()
        os.chdir(base)  # the name of a socket is limited to 108 bytes
        try:
            bound.bind("socket")
        finally:
            os.chdir(here)
    path = "/dev/zero" if thing == "zero" else thing
    verifier = EvidenceVerifier(base, allow_absolute=True)
    verdict = await verifier.verify_evidence(claim_of(EvidenceType.FILE_SHA256, path))
    assert (verdict.status, verdict.verified) == ("refused", False)
    assert "only regular files are read" in verdict.error
    assert (await verifier.verify_evidence(artifact_exists(path))).verified


async def test_a_file_over_the_limit_is_not_read(base):
    with (base / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    began = time.monotonic()
    verdict = await EvidenceVerifier(base).verify_evidence(claim_of(EvidenceType.FILE_SHA256, "sparse"))
    assert verdict.status == "refused"
    assert time.monotonic() - began < 20


async def test_a_large_file_ends_at_the_time_limit(base):
    with (base / "sparse").open("wb") as file:
        file.truncate(1 << 35)
    verifier = EvidenceVerifier(base, limits=Limits(hash_seconds=0.05))
    assert (await verifier.verify_evidence(claim_of(EvidenceType.FILE_SHA256, "sparse"))).status == "timed_out"


async def test_a_file_that_lies_about_its_size_is_no_content(base):
    verifier = EvidenceVerifier(base, allow_absolute=True)
    verdict = await verifier.verify_evidence(claim_of(EvidenceType.FILE_SHA256, "/proc/self/status"))
    assert verdict.status == "cannot_check"


@pytest.mark.parametrize(("mode", "data"), [("ab", b"x"), ("r+b", b"y")], ids=["grows", "is rewritten"])
def test_a_file_that_changes_while_it_is_read_has_no_digest(base, mode, data):
    (base / "log").write_bytes(b"x" * 2_000_000)

    def write_and_tell_the_time():  # asked for after each chunk
        with (base / "log").open(mode) as file:
            file.write(data)
        os.utime(base / "log")  # two writes within one tick of the clock would look alike
        return time.monotonic_ns()

    deadline = Deadline(write_and_tell_the_time, time.monotonic_ns() + 10**10, 10)
    with Sandbox(str(base)) as sandbox, pytest.raises(UncheckableClaimError, match="being written"):
        digest_path(sandbox, "log", Limits(), deadline)


@pytest.mark.skipif(os.getuid() == 0, reason="nothing is closed to root")
async def test_what_may_not_be_read_cannot_be_checked(base, verifier):
    (base / "f").write_text("abc")
    (base / "f").chmod(0)
    assert (await verifier.verify_evidence(file_sha256("f", ABC))).status == "cannot_check"


# --- trees -----------------------------------------------------------------------------------------------------------


def make_tree(root, *, reverse=False):
    steps = [
        lambda: (root / "a.txt").write_text("1"),
        lambda: ((root / "sub").mkdir(), (root / "sub" / "b.txt").write_text("2")),
        lambda: (root / "empty").mkdir(),
        lambda: (root / "link").symlink_to("a.txt"),
        lambda: (root / "link-out").symlink_to("/etc/passwd"),
    ]
    root.mkdir()
    for step in reversed(steps) if reverse else steps:
        step()


async def digest_of(verifier, path):
    return (await verifier.capture(directory_digest(path))).expected["digest"]


async def test_equal_trees_have_equal_digests_whatever_their_order_times_and_modes(base, verifier):
    make_tree(base / "one")
    make_tree(base / "two", reverse=True)
    (base / "two" / "a.txt").chmod(0o700)
    os.utime(base / "two" / "sub", (0, 0))
    assert await digest_of(verifier, "one") == await digest_of(verifier, "two")


CHANGES = {
    "content": (lambda root: (root / "sub" / "b.txt").write_text("3"), "t/sub/b.txt: recorded sha256 "),
    "same size and time": (lambda root: rewrite_in_place(root / "a.txt"), "t/a.txt: recorded sha256 "),
    "new": (lambda root: (root / "sub" / "c").write_text(""), "t/sub/c is new"),
    "gone": (lambda root: (root / "a.txt").unlink(), "t/a.txt is missing"),
    "new directory": (lambda root: (root / "sub" / "d").mkdir(), "t/sub/d is new"),
    "gone directory": (lambda root: (root / "empty").rmdir(), "t/empty is missing"),
    "renamed": (lambda root: (root / "a.txt").rename(root / "z.txt"), "t/a.txt is missing"),
    "link turned": (lambda root: turn_link(root), "t/link: recorded a link to a.txt, found a link to sub"),
    "file for directory": (lambda root: file_for_directory(root), "t/empty: recorded a directory, found sha256 "),
}


def rewrite_in_place(file):
    before = file.stat()
    file.write_text("9")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def turn_link(root):
    (root / "link").unlink()
    (root / "link").symlink_to("sub")


def file_for_directory(root):
    (root / "empty").rmdir()
    (root / "empty").write_text("")


@pytest.mark.parametrize("mode", ["hash", "stat"])
@pytest.mark.parametrize("change", CHANGES)
async def test_every_change_of_a_tree_shows_and_is_named(base, change, mode):
    make_tree(base / "t")
    make_old(*(base / "t").iterdir(), base / "t" / "sub" / "b.txt")
    verifier = EvidenceVerifier(base, mode=mode)
    captured = await verifier.capture(directory_digest("t"))
    assert (await verifier.verify_evidence(captured)).verified
    act, said = CHANGES[change]
    act(base / "t")
    verdict = await verifier.verify_evidence(captured)
    assert verdict.status == "failed"
    assert any(said in detail for detail in verdict.details), verdict.details


async def test_names_and_contents_cannot_be_shifted_into_one_another(base, verifier):
    """{"ab": ""} and {"a": "b"} and {"a": "", "b": ""} are three trees."""
    trees = [{"ab": ""}, {"a": "b"}, {"a": "", "b": ""}, {"a/b": ""}, {"a": ""}]
    (base / "split" / "a").mkdir(parents=True)
    (base / "split" / "b").mkdir()
    (base / "joined" / "adb").mkdir(parents=True)
    digests = {await digest_of(verifier, "split"), await digest_of(verifier, "joined")}
    for number, tree in enumerate(trees):
        for name, text in tree.items():
            file = base / str(number) / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        digests.add(await digest_of(verifier, str(number)))
    assert len(digests) == len(trees) + 2


@pytest.mark.timeout(120)
async def test_a_tree_with_a_pipe_is_refused(base, verifier):
    make_tree(base / "t")
    os.mkfifo(base / "t" / "sub" / "pipe")
    with pytest.raises(EvidenceCaptureError, match=r"holds a FIFO, sub/pipe"):
        await verifier.capture(directory_digest("t"))


async def test_links_in_a_tree_are_recorded_and_never_followed(base, verifier):
    make_tree(base / "t")
    (base / "t" / "around").symlink_to(".")
    captured = await verifier.capture(directory_digest("t"))
    assert captured.captured.facts["entries"] == 7
    assert captured.captured.facts["contents"]["link-out"] == "→ /etc/passwd"


@pytest.mark.parametrize(
    ("limits", "said"), [(Limits(tree_entries=3), "more than 3 entries"), (Limits(tree_depth=1), "directories deep")]
)
async def test_a_tree_over_a_limit_is_refused(base, limits, said):
    make_tree(base / "t")
    (base / "t" / "sub" / "deeper").mkdir()
    verdict = await EvidenceVerifier(base, limits=limits).verify_evidence(directory_digest("t", "0" * 64))
    assert verdict.status == "refused"
    assert said in verdict.error


async def test_a_file_in_the_place_of_a_tree_is_said_to_be_one(base, verifier):
    (base / "t").write_text("")
    verdict = await verifier.verify_evidence(directory_digest("t", "0" * 64))
    assert (verdict.status, verdict.error) == ("failed", "t is a file, not a directory")


def pools():
    yield "none", None
    yield "threads", ThreadPoolExecutor(2)
    yield "processes", ProcessPoolExecutor(2, mp_context=get_context("forkserver"))


async def test_every_executor_gives_the_same_digests_and_verdicts(base):
    (base / "t").mkdir()
    for number in range(300):
        (base / "t" / f"{number}").write_text(str(number))
    claims = [file_sha256(f"t/{number}") for number in range(300)] + [directory_digest("t")]
    seen = []
    for name, pool in pools():
        verifier = EvidenceVerifier(base, executor=pool)
        recorded, report = await verifier.commit(EvidencePack(claims))
        assert report.verified, name
        (base / "t" / "7").write_text("changed")
        again = await verifier.verify_evidence_pack(recorded)
        seen.append(([claim.expected for claim in recorded], [verdict.status for verdict in again.verdicts]))
        (base / "t" / "7").write_text("7")
        if pool is not None:
            pool.shutdown()
    assert seen[0] == seen[1] == seen[2]
    assert [index for index, status in enumerate(seen[0][1]) if status == "failed"] == [7, 300]


async def test_an_executor_that_is_gone_answers_nothing_and_raises_nothing(base):
    (base / "f").write_text("abc")
    pool = ThreadPoolExecutor(1)
    pool.shutdown()
    verdict = await EvidenceVerifier(base, executor=pool).verify_evidence(file_sha256("f", ABC))
    assert verdict.status == "cannot_check"


# --- stat against hash -----------------------------------------------------------------------------------------------


def make_old(*files):
    """Age files, so that their signatures can be trusted: their last change lies more than a clock's tick back."""
    until = max(file.lstat().st_ctime_ns for file in files) + 60_000_000
    while time.time_ns() < until:
        os.sched_yield()


async def test_stat_skips_an_untouched_file_and_hash_never_does(base):
    (base / "f").write_text("abc")
    make_old(base / "f")
    stat_mode, hash_mode = EvidenceVerifier(base, mode="stat"), EvidenceVerifier(base)
    captured = await hash_mode.capture(file_sha256("f"))
    assert len(captured.captured.signature) == 5
    assert (await stat_mode.verify_evidence(captured)).method == "stat"
    assert (await hash_mode.verify_evidence(captured)).method == "hash"


async def test_stat_skips_an_untouched_tree(base):
    make_tree(base / "t")
    make_old(base / "t" / "link-out", base / "t" / "sub" / "b.txt", base / "t")
    verifier = EvidenceVerifier(base, mode="stat")
    captured = await verifier.capture(directory_digest("t"))
    assert (await verifier.verify_evidence(captured)).method == "stat"
    (base / "t" / "sub" / "b.txt").touch()
    assert (await verifier.verify_evidence(captured)).method == "hash"


@pytest.mark.parametrize(
    "change",
    [
        lambda file: rewrite_in_place(file),
        lambda file: file.write_text("abcd"),
        lambda file: (file.rename(file.with_name("old")), file.write_text("abd"))[0],
        lambda file: file.unlink(),
    ],
    ids=["same size and mtime", "longer", "replaced", "gone"],
)
async def test_stat_reads_a_file_that_was_touched(base, change):
    file = base / "f"
    file.write_text("1")
    make_old(file)
    verifier = EvidenceVerifier(base, mode="stat")
    captured = await verifier.capture(file_sha256("f"))
    change(file)
    assert (await verifier.verify_evidence(captured)).status == "failed"


async def test_a_signature_is_of_one_content_only(base):
    """A claim whose digest was exchanged must not be answered by the signature of the old one."""
    import attrs

    (base / "f").write_text("abc")
    make_old(base / "f")
    verifier = EvidenceVerifier(base, mode="stat")
    captured = await verifier.capture(file_sha256("f"))
    other = attrs.evolve(captured, expected={"path": "f", "sha256": "0" * 64})
    assert (await verifier.verify_evidence(other)).status == "failed"


async def test_a_fresh_signature_is_not_recorded(base):
    """A change within the same tick of the clock would not show (git calls such files racily clean)."""
    found = os.stat_result((stat.S_IFREG, 0, 0, 1, 0, 0, 0, 0, 0, 0))
    for nanoseconds, after_ms, expected in [(5, 10, False), (5, 30, True), (0, 1000, False), (0, 2500, True)]:
        status = _Status(found, mtime_ns=10**18 + nanoseconds, ctime_ns=10**18 + nanoseconds)
        now = datetime.fromtimestamp(10**9 + after_ms / 1000, UTC)
        assert is_signature_reliable(status, now) is expected, (nanoseconds, after_ms)


@pytest.mark.parametrize(("milliseconds", "is_recorded"), [(1, False), (1000, True)])
async def test_the_signature_of_a_file_just_written_is_left_out(base, milliseconds, is_recorded):
    (base / "t").mkdir()
    (base / "t" / "f").write_text("abc")
    os.utime(base / "t" / "f", ns=(10**18 + 5, 10**18 + 5))  # whole seconds would count as a coarse clock
    newest = max((base / "t" / "f").stat().st_ctime_ns, (base / "t").stat().st_ctime_ns)
    clock = StoppedClock(datetime.fromtimestamp(newest / 1e9 + milliseconds / 1000, UTC))
    verifier = EvidenceVerifier(base, mode="stat", clock=clock)
    file = await verifier.capture(file_sha256("t/f"))
    tree = await verifier.capture(directory_digest("t"))
    assert (file.captured.signature is not None) is is_recorded
    assert ("stat_digest" in tree.captured.facts) is is_recorded


class StoppedClock(SystemClock):
    def __init__(self, now):
        self._now = now

    def now(self):
        return self._now


class _Status:
    def __init__(self, found, *, mtime_ns, ctime_ns):
        self.st_mtime_ns, self.st_ctime_ns = mtime_ns, ctime_ns


async def test_a_stated_digest_that_is_wrong_gets_no_signature(base, verifier):
    (base / "f").write_text("abc")
    claim = file_sha256("f", "0" * 64)
    assert await verifier.capture(claim) == claim
    right = await verifier.capture(file_sha256("f", ABC.upper()))
    assert (right.state, right.expected["sha256"]) == ("stated", ABC)
    assert right.captured.facts["sha256"] == ABC
