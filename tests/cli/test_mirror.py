"""A mirror from the command line: each save goes to a second store too."""

from __future__ import annotations

import shutil

from flowckpt.cli.settings import choose_store, store_variables

RUN = ("run", "pipeline.py:etl", "-i", "source=a.csv", "--id", "one")


def test_a_run_with_a_mirror_stands_in_both_stores_and_is_resumed_from_the_mirror_when_the_store_is_lost(
    flowckpt, tmp_path
):
    (tmp_path / "pyproject.toml").write_text('[tool.flowckpt]\nstore = "sqlite:runs.db"\nmirror = "file:json"\n')
    said = flowckpt(*RUN).expect(1)
    assert "Resume with: flowckpt resume one\n" in said.err
    assert "mirrored in file:" in flowckpt("show", "one").expect(0).out
    said = flowckpt("store", "check").expect(0)
    assert "compared with the mirror file:" in said.err and "notice" not in said.out
    shutil.rmtree(tmp_path / "json")
    said = flowckpt("store", "check", "one").expect(0)
    assert "lacks 3 checkpoints, from '@started' on" in said.out and "'flowckpt store repair one'" in said.out
    flowckpt("store", "repair", "one").expect(0)
    assert "notice" not in flowckpt("store", "check").expect(0).out
    for each in tmp_path.glob("runs.db*"):
        shutil.rmtree(each) if each.is_dir() else each.unlink()
    said = flowckpt(*RUN).expect(13)
    assert "the store does not have the run; nothing was changed in the mirror" in said.err
    json, runs = tmp_path / "json", tmp_path / "runs.db"
    assert f"the mirror file:{json} of the store sqlite:{runs} cannot take run 'one'" in said.err
    assert f"'flowckpt copy one --store file:{json} --to sqlite:{runs}'" in said.err
    flowckpt("copy", "one", "--store", "file:json", "--to", "sqlite:runs.db").expect(0)
    (tmp_path / "ready").touch()
    document = flowckpt("resume", "one", "--json").expect(0).document
    assert (document["attempt"], document["steps"]["restored"]) == (2, 1)
    assert flowckpt("show", "one", "--store", "file:json", "--json").expect(0).document["status"] == "completed"
    flowckpt("store", "clear", "one").expect(0)
    assert flowckpt("list", "--store", "file:json", "--json").expect(0).document == []


def test_the_ways_out_of_another_history_name_one_store_each(flowckpt, tmp_path):
    flowckpt(*RUN, "--store", "file:runs", "--mirror", "file:json").expect(1)
    shutil.rmtree(tmp_path / "runs")
    said = flowckpt(*RUN, "--store", "file:runs", "--mirror", "file:json").expect(13)
    assert f"'flowckpt copy one --store file:{tmp_path}/json --to file:{tmp_path}/runs'" in said.err
    assert f"'flowckpt store clear one --store file:{tmp_path}/json'" in said.err


def test_a_mirror_that_cannot_be_reached_ends_the_run_with_13_or_is_reported_once(flowckpt, tmp_path):
    (tmp_path / "taken").touch()
    (tmp_path / "ready").touch()
    said = flowckpt(*RUN, "--mirror", "file:taken/json").expect(13)
    assert "cannot take run 'one'" in said.err and "--on-mirror-error continue" in said.err
    said = flowckpt(*RUN, "--mirror", "file:taken/json", "--on-mirror-error", "continue").expect(0)
    assert said.err.count("catches up at a later save or resume") == 1
    said = flowckpt("resume", "one", "--mirror", "file:json").expect(0)
    assert "steps: 0 executed, 2 restored" in said.out
    assert flowckpt("show", "one", "--store", "file:json", "--json").expect(0).document["status"] == "completed"


def test_the_next_command_names_the_mirror_that_was_typed(flowckpt):
    said = flowckpt(*RUN, "--mirror", "file:json").expect(1)
    assert "Resume with: flowckpt resume --mirror file:json one\n" in said.err


def test_a_mirror_that_was_typed_can_be_compared_and_brought_level_too(flowckpt, tmp_path):
    flowckpt(*RUN, "--mirror", "file:json").expect(1)
    shutil.rmtree(tmp_path / "json")
    assert "the mirror" in flowckpt("store", "check", "--mirror", "file:json").expect(0).out
    flowckpt("store", "repair", "one", "--mirror", "file:json").expect(0)
    assert "one" in flowckpt("list", "--store", "file:json").expect(0).out


def test_a_store_that_is_named_nearer_than_the_mirror_is_not_mirrored_and_a_run_says_so(flowckpt, tmp_path):
    (tmp_path / "pyproject.toml").write_text('[tool.flowckpt]\nstore = "sqlite:runs.db"\nmirror = "file:json"\n')
    (tmp_path / "ready").touch()
    said = flowckpt(*RUN, "--store", "file:other").expect(0)
    assert "so this run has no mirror; --mirror names one" in said.err
    said = flowckpt(*RUN[:-1], "two", FLOWCKPT_STORE="file:other").expect(0)
    assert "so this run has no mirror" in said.err
    assert not (tmp_path / "json").exists()
    assert "so this run" not in flowckpt(*RUN[:-1], "three", "--store", "sqlite:runs.db").expect(0).err
    assert "three" in flowckpt("list", "--store", "file:json").expect(0).out


def test_a_mirror_that_cannot_be_is_a_mistake_of_its_user(flowckpt, tmp_path):
    said = flowckpt(*RUN, "--store", "file:runs", "--mirror", "file:./runs").expect(2)
    assert "is the store itself" in said.err
    assert "unknown store scheme 'sqlight'" in flowckpt(*RUN, "--mirror", "sqlight:x").expect(2).err
    said = flowckpt("list", FLOWCKPT_ON_MIRROR_ERROR="ignore").expect(2)
    assert "must be one of fail, continue, got 'ignore'" in said.err
    flowckpt("store", "key", "new", "keys.json").expect(0)
    said = flowckpt(*RUN, "--mirror", "sqlite:mirror.db", FLOWCKPT_KEY_FILE="keys.json").expect(2)
    assert "cannot authenticate or encrypt records" in said.err


def test_a_run_whose_store_was_lost_does_not_start_again_while_the_mirror_has_it_whatever_the_policy(
    flowckpt, tmp_path
):
    words = (*RUN, "--store", "file:runs", "--mirror", "file:json", "--on-mirror-error", "continue")
    flowckpt(*words).expect(1)
    shutil.rmtree(tmp_path / "runs")
    said = flowckpt(*words, "--if-exists", "resume").expect(13)
    assert "the store does not have the run; nothing was changed in the mirror" in said.err
    assert flowckpt("list", "--store", "file:runs", "--json").expect(0).document == []
    flowckpt("copy", "one", "--store", "file:json", "--to", "file:runs").expect(0)
    (tmp_path / "ready").touch()
    said = flowckpt(*words, "--if-exists", "resume").expect(0)
    assert "1 restored" in said.out


def test_an_empty_variable_or_option_switches_the_mirror_of_the_settings_off(flowckpt, tmp_path):
    (tmp_path / "pyproject.toml").write_text('[tool.flowckpt]\nmirror = "file:json"\n')
    (tmp_path / "ready").touch()
    for number, (words, variables) in enumerate([(("--mirror", ""), {}), ((), {"FLOWCKPT_MIRROR": ""})]):
        said = flowckpt(*RUN[:-1], f"r{number}", *words, **variables).expect(0)
        assert "mirror" not in said.err and not (tmp_path / "json").exists()
    shown = flowckpt("config", "--json", FLOWCKPT_MIRROR="").expect(0).document
    assert "FLOWCKPT_MIRROR" in str(shown)
    flowckpt(*RUN).expect(0)
    assert (tmp_path / "json").exists()
    assert (
        choose_store(None, store_variables(choose_store(None, {"FLOWCKPT_MIRROR": ""}, tmp_path)), tmp_path).mirror
        == ""
    )


def test_a_mirror_in_memory_is_refused_wherever_it_is_named(flowckpt, tmp_path):
    said = flowckpt(*RUN, "--mirror", "memory:").expect(2)
    assert "'memory:' is not the spec of a store that outlives the process, or empty for none" in said.err
    said = flowckpt("list", FLOWCKPT_MIRROR="memory:").expect(2)
    assert "FLOWCKPT_MIRROR must be the spec of a store that outlives the process" in said.err
    (tmp_path / "pyproject.toml").write_text('[tool.flowckpt]\nmirror = "memory:x"\n')
    said = flowckpt(*RUN).expect(2)
    assert "tool.flowckpt.mirror must be the spec of a store that outlives the process" in said.err


def test_messages_about_a_mirror_show_its_address_without_the_password(flowckpt, tmp_path):
    said = flowckpt(*RUN, "--mirror", "postgresql://me:hunter2@127.0.0.1:1/x?connect_timeout=1").expect(13)
    assert "the mirror postgresql://me:***@127.0.0.1:1/x" in said.err and "hunter2" not in said.err
    assert f"of the store file:{tmp_path}/.flowckpt" in said.err


def test_a_process_that_a_command_starts_has_the_same_mirror(tmp_path):
    environ = {"FLOWCKPT_STORE": "file:runs", "FLOWCKPT_MIRROR": "sqlite:m.db", "FLOWCKPT_ON_MIRROR_ERROR": "continue"}
    choice = choose_store(None, environ, tmp_path)
    assert (choice.mirror, choice.on_mirror_error) == (f"sqlite:{tmp_path}/m.db", "continue")
    assert choose_store(None, store_variables(choice), tmp_path / "elsewhere") == choice
