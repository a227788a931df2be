"""Nobody else's code runs: stores, settings and programs of other users, and those that others may write to."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cli.conftest import Command, Shop

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
RUNNING = [
    ("resume", "--last"),
    ("resume", "one"),
    ("recover", "--once"),
    ("plan", "one"),
    ("verify", "one"),
    ("cancel", "one"),
    ("fork", "one"),
    ("rollback", "one", "fetch"),
    ("signal", "one", "name"),
    ("approve", "one", "name"),
    ("reject", "one", "name"),
    ("run", "shop.py", "--id", "two"),
]
READING = [
    ("list",),
    ("show", "one"),
    ("diff", "one", "one"),
    ("store", "check"),
    ("store", "stats"),
    ("export", "one"),
]


def give_away(*paths: Path) -> None:
    for path in paths:
        os.chown(path, NOBODY, NOBODY)


def refused(ran, *words: str) -> None:
    ran.expect(2)
    for word in (*words, "safe_stores", "FLOWCKPT_SAFE_STORES"):
        assert word in ran.err, ran.err
    assert "Traceback" not in ran.err


@needs_root
@pytest.mark.parametrize("arguments", RUNNING, ids=" ".join)
def test_no_command_runs_code_for_a_store_of_another_user(shop: Shop, arguments):
    give_away(shop.directory / ".flowckpt")
    before = shop.stored()
    refused(shop(*arguments), str(shop.directory / ".flowckpt"), "belongs to user 65534")
    assert shop.log() == []
    assert shop.stored() == before


@needs_root
@pytest.mark.parametrize("arguments", READING, ids=" ".join)
def test_a_store_of_another_user_can_be_read(shop: Shop, arguments):
    give_away(shop.directory / ".flowckpt")
    shop(*arguments).expect(0)


@pytest.mark.parametrize("place", [".flowckpt", ".flowckpt/runs"])
def test_a_store_that_others_may_write_to_is_refused(shop: Shop, place):
    (shop.directory / place).chmod(0o777)
    refused(shop("resume", "--last"), str(shop.directory / place), "can be changed by other users")
    (shop.directory / place).chmod(0o755)
    shop("resume", "--last").expect(0)


@needs_root
@pytest.mark.parametrize("mode", ["owner", "mode"])
@pytest.mark.parametrize("which", ["", "inner", "inner/most"])
def test_each_directory_between_the_store_and_the_working_directory_counts(shop: Shop, which, mode):
    inner = shop.directory / "inner" / "most"
    inner.mkdir(parents=True)
    place = shop.directory / which
    if mode == "owner":
        give_away(place)
    else:
        place.chmod(0o777)
    refused(Command(inner)("resume", "--last"), str(place))


def test_a_sticky_directory_for_everyone_is_no_obstacle(shop: Shop):
    shop.directory.chmod(0o1777)
    inner = shop.directory / "inner"
    inner.mkdir()
    Command(inner)("plan", "one").expect(0)


@needs_root
def test_only_the_users_own_settings_trust_a_store(shop: Shop, tmp_path_factory):
    store = shop.directory / ".flowckpt"
    give_away(store)
    config = tmp_path_factory.mktemp("home") / "flowckpt" / "config.toml"
    config.parent.mkdir()
    config.write_text(f'safe_stores = ["{store}"]\n')
    home = {"XDG_CONFIG_HOME": str(config.parent.parent)}

    (shop.directory / "pyproject.toml").write_text(f'[tool.flowckpt]\nsafe_stores = ["{store}"]\n')
    ran = shop("plan", "one").expect(2)
    assert "safe_stores" in ran.err and "config.toml" in ran.err
    (shop.directory / "pyproject.toml").unlink()

    shop("plan", "one", **home).expect(0)
    shop("plan", "one", FLOWCKPT_SAFE_STORES=f"/nowhere:{store}").expect(0)
    shop("plan", "one", FLOWCKPT_SAFE_STORES=str(shop.directory)).expect(0)
    refused(shop("plan", "one", FLOWCKPT_SAFE_STORES=f"{store}x:{store}/runs"))
    assert "FLOWCKPT_SAFE_STORES" not in shop("config", FLOWCKPT_SAFE_STORES=str(store)).expect(0).err

    give_away(config)  # settings that another user wrote are nobody's consent
    ran = shop("plan", "one", **home).expect(2)
    assert str(config) in ran.err


@pytest.mark.parametrize(
    "text", ["safe_stores = 3", "safe_stores = [3]", "safe_store = []", "= broken", 'safe_stores = ["relative"]']
)
def test_a_mistake_in_the_users_settings_is_named(shop: Shop, tmp_path_factory, text):
    config = tmp_path_factory.mktemp("home") / "flowckpt" / "config.toml"
    config.parent.mkdir()
    config.write_text(text)
    (shop.directory / ".flowckpt").chmod(0o777)
    ran = shop("plan", "one", XDG_CONFIG_HOME=str(config.parent.parent)).expect(2)
    assert str(config) in ran.err


@needs_root
def test_settings_of_another_user_are_refused(shop: Shop):
    inner = shop.directory / "inner"
    inner.mkdir()
    file = shop.directory / "pyproject.toml"
    file.write_text("[tool.flowckpt]\nexecutors = ['process']\n")
    give_away(file)
    for command in (shop, Command(inner)):
        refused(command("plan", "one"), str(file), "belongs to user 65534")
    shop("plan", "one", FLOWCKPT_SAFE_STORES=str(file)).expect(0)
    file.write_text("[tool.other]\n")  # says nothing to flowckpt
    shop("plan", "one").expect(0)


@needs_root
@pytest.mark.parametrize("beside", ["", "-wal", "-journal"])
def test_a_database_of_another_user_is_refused(shop: Shop, beside):
    (shop.directory / "ready").unlink()
    shop("run", "shop.py", "--id", "one", "--store", "sqlite:runs.db").expect(1)
    (shop.directory / "log").unlink()
    file = shop.directory / f"runs.db{beside}"
    file.touch()
    give_away(file)
    refused(shop("resume", "--last", "--store", "sqlite:runs.db"), str(file))
    os.chown(file, 0, 0)
    file.chmod(0o666)
    refused(shop("resume", "--last", "--store", "sqlite:runs.db"), str(file))
    assert shop.log() == []


@needs_root
@pytest.mark.parametrize("how", ["file", "directory", "link"])
def test_a_program_of_another_user_is_not_loaded_for_a_record(shop: Shop, tmp_path_factory, how):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    program = elsewhere / "shop.py"
    program.write_text((shop.directory / "shop.py").read_text())
    shop("run", str(program), "--id", "other").expect(0)
    if how == "link":
        real = program.rename(elsewhere / "real.py")
        program.symlink_to(real)
        give_away(real)
    else:
        give_away(program if how == "file" else elsewhere)
    (shop.directory / "log").unlink()
    refused(shop("plan", "other"), str(elsewhere))
    refused(shop("resume", "other"), str(elsewhere))
    assert shop.log() == []
    shop("plan", "other", FLOWCKPT_SAFE_STORES=str(elsewhere)).expect(0)


@needs_root
def test_a_recovery_leaves_a_run_whose_directory_is_another_users(shop: Shop):
    inner = shop.directory / "inner"
    inner.mkdir()
    (inner / "shop.py").write_text((shop.directory / "shop.py").read_text())
    Command(inner)("run", "shop.py", "--id", "other").expect(1)
    give_away(inner)
    refused(shop("resume", "other"), str(inner))
