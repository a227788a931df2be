"""An effect that happened once is not repeated without a person: every default stops, and names the options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

PROGRAM = """
import json, os
from pathlib import Path
from flowckpt import step, workflow
from flowckpt.evidence import file_sha256

def note(line):
    with open("log", "a") as file:
        file.write(line + "\\n")

def fetch():
    note("fetch")
    Path("orders").write_text("2 books")
    return int(Path("price").read_text()) if Path("price").exists() else 12

def charge(amount):
    note(f"charge {amount}")
    return amount

def refund(amount):
    note(f"refund {amount}")

def mail(amount):
    note(f"mail {amount}")
    if not Path("ready").exists():
        raise OSError("no connection")

@workflow
def pay():
    amount = yield step("fetch").python(fetch).evidence(file_sha256("orders")).checkpoint()
    yield step("charge").python(charge, amount).at_most_once()
    yield step("mail").python(mail, amount).checkpoint()
"""

EDITS = {
    "its argument": ("python(charge, amount)", "python(charge, amount + 1)", "arguments: amount: 12 → 13", "--on-stale"),
    "its version tag": (".at_most_once()", ".at_most_once().version('b')", "version: recorded None, now 'b'", "--on-stale"),
    "its code": (
        'note(f"charge {amount}")', 'note(f"charge  {amount}")', "code: charge(), or code of the project", "--on-code-change"
    ),
}  # fmt: skip
GUARDS = {"at most once": ".at_most_once()", "rollback": ".rollback(refund).checkpoint()"}


class Shop:
    """The program in a directory, and what a person does with it."""

    def __init__(self, flowckpt: Any, folder: Path) -> None:
        self.command, self.file = flowckpt, folder / "pay.py"
        self.folder = folder
        self.file.write_text(PROGRAM)

    def edit(self, old: str, new: str) -> None:
        text = self.file.read_text()
        assert text.count(old) == 1, old
        self.file.write_text(text.replace(old, new))

    def guard(self, guard: str) -> None:
        self.edit(".at_most_once()", guard)

    def fail_after_the_charge(self) -> None:
        self.command("run", "pay.py", "--id", "one", "--no-rollback").expect(1)
        assert self.command.log() == ["fetch", "charge 12", "mail 12"]
        (self.folder / "ready").touch()


@pytest.fixture
def shop(flowckpt: Any, tmp_path: Path) -> Shop:
    return Shop(flowckpt, tmp_path)


@pytest.mark.parametrize("guard", GUARDS.values(), ids=GUARDS)
@pytest.mark.parametrize(("old", "new", "reason", "option"), EDITS.values(), ids=EDITS)
def test_an_edit_of_a_step_that_was_done_stops_by_every_default(
    shop: Shop, guard: str, old: str, new: str, reason: str, option: str
) -> None:
    shop.guard(guard)
    shop.fail_after_the_charge()
    shop.edit(old.replace(".at_most_once()", guard), new.replace(".at_most_once()", guard))
    before = shop.command.log()
    for arguments in ((), ("--reuse", "inputs"), ("--on-stale", "fail"), ("--on-code-change", "fail")):
        ran = shop.command("resume", "one", *arguments).expect(10)
        assert reason in ran.err
        for shown in (
            f"flowckpt resume {' '.join((*(arguments if option not in arguments else ()), option))} rerun one",
            f"{option} reuse one",
            "--from charge one",
            "flowckpt recover",
            "flowckpt plan",
        ):
            assert shown in ran.err, (shown, ran.err)
        assert ("unless its evidence shows that it was done" in ran.err) is (option == "--on-code-change")
    plan = shop.command("plan", "one").expect(10)
    assert "The resume would stop: charge: " in plan.out and "--from charge one" in plan.out
    assert shop.command.log() == before
    shop.command("resume", "one", option, "reuse").expect(0)
    assert shop.command.log() == [*before, "mail 12"]


@pytest.mark.parametrize("guard", GUARDS.values(), ids=GUARDS)
def test_an_explicit_option_does_it_again(shop: Shop, guard: str) -> None:
    shop.guard(guard)
    shop.fail_after_the_charge()
    shop.edit("python(charge, amount)", "python(charge, amount + 1)")
    shop.command("resume", "one", "--on-stale", "rerun").expect(0)
    assert shop.command.log()[3:] == ["charge 13", "mail 12"]


@pytest.mark.parametrize("guard", GUARDS.values(), ids=GUARDS)
def test_from_the_step_does_it_again(shop: Shop, guard: str) -> None:
    shop.guard(guard)
    shop.fail_after_the_charge()
    shop.edit(EDITS["its code"][0], EDITS["its code"][1])
    shop.command("resume", "one", "--from", "charge").expect(0)
    assert shop.command.log()[3:] == ["charge  12", "mail 12"]


@pytest.mark.parametrize("guard", GUARDS.values(), ids=GUARDS)
def test_a_step_that_runs_again_before_it_changes_its_argument(shop: Shop, guard: str) -> None:
    """The other argument may be seen only after the earlier step has run: the resume stops there, and can be continued."""
    shop.guard(guard)
    shop.fail_after_the_charge()
    (shop.folder / "price").write_text("14")
    (shop.folder / "orders").write_text("3 books")
    if guard == GUARDS["at most once"]:
        planned = shop.command("plan", "one").expect(15).out
        assert "if fetch leaves the same result as before; otherwise the resume stops here" in planned
    ran = shop.command("resume", "one").expect(10)
    assert "charge 14" not in shop.command.log() and "--from charge one" in ran.err
    shop.command("resume", "one").expect(10)
    shop.command("plan", "one").expect(10)
    shop.command("resume", "one", "--from", "charge").expect(0)
    assert shop.command.log()[-2:] == ["charge 14", "mail 14"]


def test_what_was_not_undone_stops_before_anything_runs(shop: Shop) -> None:
    shop.guard(GUARDS["rollback"])
    shop.fail_after_the_charge()
    (shop.folder / "orders").write_text("3 books")
    before = shop.command.log()
    ran = shop.command("resume", "one").expect(10)
    assert "an earlier step runs again, and the effect of this one was not undone" in ran.err
    shop.command("plan", "one").expect(10)
    assert shop.command.log() == before
    shop.command("resume", "one", "--on-stale", "rerun").expect(0)
    assert shop.command.log()[3:] == ["fetch", "charge 12", "mail 12"]


def test_what_was_undone_is_done_again(shop: Shop) -> None:
    """With `.rollback()`, undone steps run again."""
    shop.guard(GUARDS["rollback"])
    shop.command("run", "pay.py", "--id", "one").expect(1)
    assert shop.command.log() == ["fetch", "charge 12", "mail 12", "refund 12"]
    (shop.folder / "ready").touch()
    shop.edit("python(charge, amount)", "python(charge, amount + 1)")
    shop.command("resume", "one").expect(0)
    assert shop.command.log()[4:] == ["charge 13", "mail 12"]


def test_a_finished_run_does_not_do_it_again_either(shop: Shop) -> None:
    (shop.folder / "ready").touch()
    shop.command("run", "pay.py", "--id", "one").expect(0)
    shop.edit("python(charge, amount)", "python(charge, amount + 1)")
    shop.command("resume", "one").expect(10)
    assert shop.command.log() == ["fetch", "charge 12", "mail 12"]


# --- without a person -----------------------------------------------------------------------------------------------


def dead(shop: Shop, tmp_path: Path) -> None:
    """Leave a run whose process died after the charge, and whose charge has another argument now."""
    shop.edit('        raise OSError("no connection")', "        os.kill(os.getpid(), 9)")
    shop.command("run", "pay.py", "--id", "one").expect(-9)
    (tmp_path / "ready").touch()
    shop.edit("python(charge, amount)", "python(charge, amount + 1)")


def test_recover_leaves_it_lists_it_and_reports_it_once(shop: Shop, tmp_path: Path) -> None:
    dead(shop, tmp_path)
    assert shop.command("list", "--status", "stale").expect(0).err.startswith("flowckpt: no run matches")
    first = shop.command("recover").expect(1)
    assert "one (pay): left as it is" in first.err and "arguments: amount: 12 → 13" in first.err
    for _ in range(2):
        again = shop.command("recover").expect(0)
        assert "arguments" not in again.err and "resuming" not in again.err
        assert "1 needs a person, as reported before: flowckpt list --status stale" in again.err
    listed = shop.command("list", "--status", "stale").expect(0).out
    assert "one" in listed and "crashed (stale)" in listed
    document = shop.command("list", "--status", "stale", "--json").document
    assert [each["workflow_id"] for each in document] == ["one"] and "amount: 12 → 13" in document[0]["stale"]
    assert shop.command("recover", "--json").expect(0).document["runs"][0]["is_reported"] is True
    assert shop.command.log() == ["fetch", "charge 12", "mail 12"]


def test_a_run_at_which_a_resume_stopped_is_listed_too_and_recover_still_reports_it_once(
    shop: Shop, tmp_path: Path
) -> None:
    dead(shop, tmp_path)
    shop.command("resume", "one").expect(10)
    (listed,) = shop.command("list", "--status", "stale", "--json").expect(0).document
    assert listed["stale"] == shop.command("show", "one", "--json").document["stale"]
    assert shop.command("show", "one", "--json").document["signals"] == []
    assert "needs a person: the recorded result of step 'charge'" in shop.command("show", "one").out
    assert listed["stale"] == "the recorded result of step 'charge' of run 'one' is stale: arguments: amount: 12 → 13"
    assert "one (pay): left as it is" in shop.command("recover").expect(1).err
    assert "as reported before" in shop.command("recover").expect(0).err
    shop.edit("python(charge, amount + 1)", "python(charge, amount)")
    shop.command("resume", "one").expect(0)
    assert shop.command("list", "--status", "stale", "--json").document == []
    assert "person" not in shop.command("show", "one").out and "not taken" not in shop.command("show", "one").out


HANDLED = """    try:
        yield step("mail").python(mail, amount).checkpoint()
    except OSError:
        yield step("give up").python(note, "give up").checkpoint()
        raise
"""


def test_a_failed_run_is_listed_until_its_resume_no_longer_stops(shop: Shop) -> None:
    """Also if that resume runs nothing and leaves no attempt, because the workflow handled the failure."""
    shop.edit('    yield step("mail").python(mail, amount).checkpoint()\n', HANDLED)
    shop.command("run", "pay.py", "--id", "one").expect(1)
    shop.edit("python(charge, amount)", "python(charge, amount + 1)")
    shop.command("resume", "one").expect(10)
    assert "failed (stale)" in shop.command("list").expect(0).out
    shop.edit("python(charge, amount + 1)", "python(charge, amount)")
    shop.command("resume", "one").expect(1)
    assert "stale" not in shop.command("list").expect(0).out
    assert shop.command.log() == ["fetch", "charge 12", "mail 12", "give up"]


def test_an_option_of_recover_decides(shop: Shop, tmp_path: Path) -> None:
    dead(shop, tmp_path)
    shop.command("recover").expect(1)
    ran = shop.command("recover", "--on-stale", "reuse").expect(0)
    assert "one (pay): completed" in ran.err
    assert shop.command.log()[3:] == ["mail 12"]
    assert shop.command("list", "--status", "stale", "--json").document == []


def test_recover_resumes_it_once_the_code_is_restored(shop: Shop, tmp_path: Path) -> None:
    dead(shop, tmp_path)
    shop.command("recover").expect(1)
    shop.edit("python(charge, amount + 1)", "python(charge, amount)")
    shop.command("recover").expect(0)
    assert shop.command.log()[3:] == ["mail 12"]


def test_recover_reruns_edited_code_if_told_to(shop: Shop, tmp_path: Path) -> None:
    dead(shop, tmp_path)
    shop.edit("python(charge, amount + 1)", "python(charge, amount)")
    shop.edit('    note("fetch")', '    note("fetch again")')
    shop.command("recover", "--on-code-change", "reuse").expect(0)
    assert shop.command.log()[3:] == ["mail 12"]
