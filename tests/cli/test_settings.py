"""Where settings come from: the command line, the environment, pyproject.toml, the default."""

from __future__ import annotations

import re

import pytest

from flowckpt import FileCheckpointStore, Retention, configured_engine, configured_options
from flowckpt.cli.config.read import Source, find_unknown_variables, read_settings
from flowckpt.cli.config.settings import SETTINGS, Part
from flowckpt.cli.settings import StoreChoice, choose_store
from flowckpt.engine.rules.reasons import OnStale, ReuseMode
from flowckpt.errors import SettingError


@pytest.fixture
def deep(tmp_path):
    found = tmp_path / "a" / "b"
    found.mkdir(parents=True)
    return found


@pytest.fixture
def alone(deep, monkeypatch):
    """In a directory with no settings at all."""
    monkeypatch.chdir(deep)
    for setting in SETTINGS.values():
        monkeypatch.delenv(setting.variable, raising=False)
    return deep


def write(directory, text):
    (directory / "pyproject.toml").write_text(f"[tool.flowckpt]\n{text}\n")


# --- the store -------------------------------------------------------------------------------------------------------


def test_each_source_goes_before_the_next(tmp_path, deep):
    found = tmp_path / "a"

    def spec(option=None, **environ):
        return choose_store(option, environ, deep).spec

    assert spec() == f"file:{deep / '.flowckpt'}"
    (tmp_path / ".flowckpt").mkdir()
    assert spec() == f"file:{tmp_path / '.flowckpt'}"
    write(found, 'store = "file:kept"')
    assert spec() == f"file:{found / 'kept'}"  # relative to the file that says it
    assert spec(FLOWCKPT_STORE="file:x") == f"file:{deep / 'x'}"
    assert spec(FLOWCKPT_STORE="") == f"file:{found / 'kept'}"
    assert spec("file:../y", FLOWCKPT_STORE="file:x") == f"file:{found / 'y'}"
    assert spec("sqlite:") == f"sqlite:{deep / '.flowckpt.db'}"
    assert spec("memory:") == "memory:"
    assert spec("runs") == "runs"  # no scheme: the store refuses it with its own words


@pytest.mark.parametrize("spec", ["sqlite:///runs.db", "sqlite://runs.db", "sqlite:////runs.db", "file://runs"])
def test_a_path_written_as_a_url_that_can_mean_two_files_is_refused_with_both(flowckpt, spec):
    path = spec.partition(":")[2].lstrip("/")
    scheme = spec.partition(":")[0]
    for refused in (flowckpt("list", "--store", spec), flowckpt("list", FLOWCKPT_STORE=spec)):
        assert refused.expect(2).err.splitlines() == [
            f"flowckpt: {spec!r} can mean two files",
            f"Write {scheme}:{path}, from the current directory, or {scheme}:/{path}, from the root.",
        ]


def test_a_file_url_is_an_absolute_path(tmp_path, flowckpt):
    flowckpt("list", "--store", f"file://{tmp_path}/runs").expect(0)


def test_a_link_to_nothing_is_the_nearest_store_and_not_passed_over_for_another(tmp_path, deep):
    (tmp_path / ".flowckpt").mkdir()
    (deep / ".flowckpt").symlink_to(tmp_path / "unmounted")
    assert choose_store(None, {}, deep).spec == f"file:{deep / '.flowckpt'}"


def test_the_option_is_repeated_only_where_it_is_needed(deep):
    assert choose_store("file:.flowckpt", {}, deep) == StoreChoice(f"file:{deep / '.flowckpt'}")
    assert choose_store("file:other", {}, deep).given == "file:other"
    assert choose_store("file:other", {"FLOWCKPT_STORE": "file:other"}, deep).given == ""


# --- reading ---------------------------------------------------------------------------------------------------------

VALUES = {  # by setting: as text, in TOML, and what both mean
    "mirror": ("file:/m", '"file:/m"', "file:/m"),
    "on_mirror_error": ("continue", '"continue"', "continue"),
    "store": ("sqlite:/r.db", '"sqlite:/r.db"', "sqlite:/r.db"),
    "key_file": ("/k/keys", '"/k/keys"', "/k/keys"),
    "compression": ("gzip", '"gzip"', "gzip"),
    "every": ("3", "3", 3),
    "interval": ("1.5", "1.5", 1.5),
    "on_save_error": ("continue", '"continue"', "continue"),
    "keep_last": ("5", "5", 5),
    "keep_generations": ("4", "4", 4),
    "max_age": ("12h", '"12h"', "12h"),
    "max_bytes": ("5000", "5000", 5000),
    "on_success": ("clear", '"clear"', "clear"),
    "retry_budget": ("2", "2", 2),
    "max_crashes": ("3", "3", 3),
    "on_stale": ("reuse", '"reuse"', "reuse"),
    "on_code_change": ("rerun", '"rerun"', "rerun"),
    "on_package_change": ("rerun", '"rerun"', "rerun"),
    "reuse": ("inputs", '"inputs"', "inputs"),
    "verify": ("stat", '"stat"', "stat"),
    "allow_network": ("a:1, [::1]:2", '["a:1", "[::1]:2"]', ("a:1", "[::1]:2")),
    "databases": ("main=sqlite:/m.db", '{main = "sqlite:/m.db"}', {"main": "sqlite:/m.db"}),
    "executors": ("process:2 gpu=thread", '["process:2", "gpu=thread"]', ("process:2", "gpu=thread")),
    "jobs": ("8", "8", 8),
    "color": ("No", "false", False),
    "progress": ("none", '"none"', "none"),
    "log_level": ("info", '"info"', "info"),
    "traceback": ("1", "true", True),
    "otel": ("1", "true", True),
    "hooks.on_failure": ("notify me", '"notify me"', "notify me"),
    "hooks.on_suspended": ("https://x/y", '"https://x/y"', "https://x/y"),
    "hooks.on_completed": ("@env:CHAT", '"@env:CHAT"', "@env:CHAT"),
    "hooks.on_crash_loop": ("a b", '"a b"', "a b"),
    "hooks.timeout": ("5", "5", 5.0),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_is_read_from_the_environment_and_from_pyproject(deep, name):
    text, toml, value = VALUES[name]
    variable = SETTINGS[name].variable
    assert value != SETTINGS[name].default
    found = read_settings({variable: text}, deep).entries[name]
    assert (found.value, found.source, found.place) == (value, Source.ENVIRONMENT, variable)
    write(deep, f"{name} = {toml}")
    found = read_settings({}, deep).entries[name]
    assert (found.value, found.source, found.place) == (value, Source.PYPROJECT, str(deep / "pyproject.toml"))


def test_the_environment_goes_before_pyproject_which_is_checked_all_the_same(deep):
    write(deep, "every = 5")
    assert read_settings({"FLOWCKPT_EVERY": "7"}, deep)["every"] == 7
    assert read_settings({"FLOWCKPT_EVERY": ""}, deep)["every"] == 5
    write(deep, "every = 0")
    with pytest.raises(SettingError):
        read_settings({"FLOWCKPT_EVERY": "7"}, deep)


def test_the_defaults_and_answers_are_those_of_the_engine(deep):
    assert read_settings({}, deep)["on_save_error"] == "fail"
    assert SETTINGS["on_stale"].kind.options == SETTINGS["on_code_change"].kind.options == tuple(map(str, OnStale))
    assert SETTINGS["reuse"].kind.options == tuple(map(str, ReuseMode))
    assert SETTINGS["reuse"].default == configured_options().policy.reuse


def test_color_is_forbidden_by_the_customs_of_terminals_whatever_else_is_said(deep):
    assert read_settings({}, deep)["color"] is True
    write(deep, "color = true")
    assert read_settings({"NO_COLOR": "1", "FLOWCKPT_COLOR": "yes"}, deep)["color"] is False
    assert read_settings({"TERM": "dumb"}, deep).entries["color"].place == "TERM"
    assert read_settings({"NO_COLOR": "", "TERM": "xterm", "FLOWCKPT_COLOR": "off"}, deep)["color"] is False


def test_an_unrelated_pyproject_is_not_even_parsed(deep):
    (deep / "pyproject.toml").write_text("[[[")
    assert read_settings({}, deep).file is None
    (deep / "pyproject.toml").write_text('[project]\ndependencies = ["flowckpt"]')
    assert read_settings({}, deep).file is None


@pytest.mark.parametrize(
    ("text", "said", "remedy"),
    [
        ("store = 3", "tool.flowckpt.store must be text, got 3", ""),
        ("store = ''", "tool.flowckpt.store must be text", ""),
        ("sotre = 'x'", "tool.flowckpt.sotre is not a setting", "Did you mean store?"),
        ("on-stale = 'fail'", "tool.flowckpt.on-stale is not a setting", "Did you mean on_stale?"),
        ("xyz = 1", "tool.flowckpt.xyz is not a setting", "The settings are store, mirror"),
        ("color = 'no'", "tool.flowckpt.color must be true or false, got 'no'", ""),
        ("every = true", "tool.flowckpt.every must be a whole number of at least 1, got True", ""),
        ("every = 1.0", "tool.flowckpt.every must be a whole number of at least 1, got 1.0", ""),
        ("every = '3'", "tool.flowckpt.every must be", ""),
        ("jobs = 257", "tool.flowckpt.jobs must be a whole number from 1 to 256, got 257", ""),
        ("interval = nan", "tool.flowckpt.interval must be a number of seconds above 0", ""),
        ("interval = inf", "tool.flowckpt.interval must be", ""),
        ("verify = 'hsah'", "tool.flowckpt.verify must be one of stat, hash, got 'hsah'", "Did you mean hash?"),
        ("verify = ['hash']", "tool.flowckpt.verify must be one of stat, hash", ""),
        ("allow_network = 'a:1'", "tool.flowckpt.allow_network must be HOST:PORT, or several", ""),
        ("allow_network = ['a']", "tool.flowckpt.allow_network must be HOST:PORT, or several", ""),
        ("allow_network = [1]", "tool.flowckpt.allow_network must be", ""),
        ("executors = 'process'", "tool.flowckpt.executors must be [NAME=]SPEC, or several with different names", ""),
        ("executors = ['process', 'thread']", "tool.flowckpt.executors must be", ""),
        ("executors = ['']", "tool.flowckpt.executors must be", ""),
    ],
)
def test_bad_keys_and_values_name_the_file_and_the_key_and_the_nearest_good_one(deep, text, said, remedy):
    write(deep, text)
    with pytest.raises(SettingError) as caught:
        read_settings({}, deep)
    assert caught.value.message.startswith(f"{deep / 'pyproject.toml'}: {said}")
    assert caught.value.remedy.startswith(remedy)
    assert bool(caught.value.remedy) == bool(remedy)
    assert (caught.value.source, caught.value.setting) == (str(deep / "pyproject.toml"), text.split(" ")[0])


@pytest.mark.parametrize(("text", "said"), [("[tool]\nflowckpt = 1", "a table"), ("flowckpt = [", "is not valid TOML")])
def test_a_broken_file_is_named(deep, text, said):
    (deep / "pyproject.toml").write_text(text)
    with pytest.raises(SettingError, match=f"^{re.escape(str(deep))}.*{said}"):
        read_settings({}, deep)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("every", "x"),
        ("every", "0"),
        ("interval", "nan"),
        ("color", "maybe"),
        ("verify", "HASH"),
        ("allow_network", "a"),
        ("executors", "gpu=thread gpu=process"),
    ],
)
def test_a_bad_variable_is_named(deep, name, text):
    with pytest.raises(SettingError, match=f"^FLOWCKPT_{name.upper()} must be .*, got '{re.escape(text)}'$") as caught:
        read_settings({f"FLOWCKPT_{name.upper()}": text}, deep)
    assert caught.value.source == f"FLOWCKPT_{name.upper()}"


def test_variables_that_look_like_settings_are_told():
    assert find_unknown_variables({"FLOWCKPT_STROE": "x", "FLOWCKPT_STORE": "x", "HOME": "x"}) == {
        "FLOWCKPT_STROE": "Did you mean FLOWCKPT_STORE?"
    }


# --- the command -----------------------------------------------------------------------------------------------------


async def test_a_value_reaches_the_command_from_the_environment_and_from_pyproject(flowckpt):
    async def every(run, *arguments, **environ):
        flowckpt("run", "pipeline.py:naps", "--id", run, *arguments, **environ).expect(0)
        latest = await FileCheckpointStore(flowckpt.directory / ".flowckpt").load_latest(run)
        return latest.metadata["saving"]["every"]

    write(flowckpt.directory, "every = 41")
    assert await every("one") == 41
    assert await every("two", FLOWCKPT_EVERY="42") == 42
    assert await every("three", "--every", "43", FLOWCKPT_EVERY="42") == 43


def test_a_bad_setting_is_a_usage_error_also_where_it_does_not_matter_but_help_is_given(flowckpt):
    ran = flowckpt("list", FLOWCKPT_EVERY="many").expect(2)
    assert ran.err == "flowckpt: FLOWCKPT_EVERY must be a whole number of at least 1, got 'many'\n"
    write(flowckpt.directory, "evry = 3")
    ran = flowckpt("run", "pipeline.py:naps", "--store", "file:x", "--every", "2").expect(2)
    assert ran.err == (
        f"flowckpt: {flowckpt.directory / 'pyproject.toml'}: tool.flowckpt.evry is not a setting\nDid you mean every?\n"
    )
    flowckpt("run", "--help").expect(0)


def test_what_is_set_is_not_repeated_in_the_commands_that_go_on(flowckpt):
    shop = flowckpt.directory / "one.py"
    code = 'from flowckpt import step, workflow\ndef one(): return {}\n@workflow\ndef w():\n    yield step("one").python(one)\n'
    shop.write_text(code.format(1))
    flowckpt("run", "one.py", "--id", "r").expect(0)
    shop.write_text(code.format(2))
    said = flowckpt("resume", "r", "--verify", "stat", "--on-save-error", "continue").expect(10).err
    assert "flowckpt resume --verify stat --on-save-error continue --on-code-change rerun r" in said
    assert "flowckpt plan --verify stat r" in said
    write(flowckpt.directory, 'on_save_error = "continue"\nallow_network = ["a:1"]')
    said = flowckpt("resume", "r", FLOWCKPT_VERIFY="stat").expect(10).err
    assert "flowckpt resume --on-code-change rerun r" in said
    said = flowckpt("resume", "r", FLOWCKPT_EXECUTORS="thread").expect(10).err
    assert "flowckpt resume --on-code-change rerun r" in said
    flowckpt("resume", "r", FLOWCKPT_ON_CODE_CHANGE="reuse").expect(0)


def test_config_shows_each_value_and_where_it_comes_from_and_no_password(flowckpt):
    write(flowckpt.directory, 'verify = "stat"')
    address = "postgresql://me:secret@db/x"
    environ = {"FLOWCKPT_STORE": address, "FLOWCKPT_MIRROR": f"{address}y", "FLOWCKPT_STROE": "x"}
    ran = flowckpt("config", "--json", **environ).expect(0)
    assert "secret" not in ran.out + ran.err
    assert "FLOWCKPT_STROE is not a setting. Did you mean FLOWCKPT_STORE?" in ran.err
    assert ran.document["file"] == str(flowckpt.directory / "pyproject.toml")
    by_name = {each.pop("name"): each for each in ran.document["settings"]}
    assert list(by_name) == list(SETTINGS)
    assert by_name["store"] == {
        "value": "postgresql://me:***@db/x",
        "source": "environment",
        "place": "FLOWCKPT_STORE",
        "variable": "FLOWCKPT_STORE",
        "option": "--store",
    }
    assert (by_name["verify"]["value"], by_name["verify"]["source"]) == ("stat", "pyproject.toml")
    assert (by_name["every"]["value"], by_name["every"]["source"]) == (None, "default")
    text = flowckpt("config", **environ).expect(0).out
    assert "secret" not in text
    assert re.search(r"^verify +stat +\S+pyproject.toml +FLOWCKPT_VERIFY +--verify$", text, re.MULTILINE)


def test_the_log_level_says_which_messages_are_shown(flowckpt):
    (flowckpt.directory / "chatty.py").write_text(
        "import logging\nfrom flowckpt import step, workflow\n"
        "def talk():\n    for level in (10, 20, 30, 40): logging.getLogger('flowckpt.mine').log(level, 'at %d', level)\n"
        '@workflow\ndef w():\n    yield step("talk").python(talk)\n'
    )

    def shown(*arguments, **environ):
        return re.findall(r"at \d+", flowckpt("run", "chatty.py", *arguments, **environ).expect(0).err)

    assert shown() == ["at 30", "at 40"]
    assert shown("--log-level", "error") == ["at 40"]
    assert shown(FLOWCKPT_LOG_LEVEL="debug") == ["at 10", "at 20", "at 30", "at 40"]
    assert shown("--log-level", "info", FLOWCKPT_LOG_LEVEL="debug") == ["at 20", "at 30", "at 40"]


# --- from Python -----------------------------------------------------------------------------------------------------


def test_a_program_gets_what_the_command_has_only_where_it_asks_for_it(alone, monkeypatch):
    from flowckpt import WorkflowEngine

    write(alone.parent, 'store = "file:kept"\non_save_error = "continue"\non_stale = "reuse"\nevery = 2')
    assert WorkflowEngine().store.path.name == ".flowckpt"
    assert configured_engine().store.path == alone.parent / "kept"
    assert configured_engine()._saving.continue_on_save_error
    assert not configured_engine(on_save_error="fail")._saving.continue_on_save_error
    mine = FileCheckpointStore(alone / "mine")
    assert configured_engine(mine).store is mine
    assert configured_engine()._saving.retention is None
    monkeypatch.setenv("FLOWCKPT_KEEP_LAST", "3")
    monkeypatch.setenv("FLOWCKPT_ON_SUCCESS", "keep_last")
    assert configured_engine()._saving.retention == Retention(keep_last=3, on_success="keep_last")
    monkeypatch.setenv("FLOWCKPT_MAX_AGE", "30d")
    monkeypatch.setenv("FLOWCKPT_MAX_BYTES", "5000")
    limits = {"keep_last": 3, "max_age": "30d", "max_bytes": 5000, "on_success": "keep_last"}
    assert configured_engine()._saving.retention == Retention(**limits)
    assert configured_engine(retention=Retention(keep_last=9))._saving.retention == Retention(keep_last=9)
    options = configured_options(tags={"a": "b"}, every=3)
    assert (options.every, options.on_stale, options.tags, options.reuse) == (3, "reuse", {"a": "b"}, None)
    monkeypatch.setenv("FLOWCKPT_EVERY", "0")
    with pytest.raises(SettingError, match="FLOWCKPT_EVERY"):
        configured_engine()


def test_every_setting_of_runs_is_a_field_of_their_options():
    from attrs import fields_dict

    from flowckpt import RunOptions

    named = {setting.name for setting in SETTINGS.values() if setting.part is Part.RUN}
    assert named and named <= set(fields_dict(RunOptions))


def test_executors_that_are_set_are_those_of_every_run_and_the_command_line_goes_before_them(flowckpt):
    code = """
import os
from flowckpt import step, workflow

def where():
    return os.getpid()

@workflow
def placed(named: bool = False):
    there = step("there").python(where)
    return (yield there.on("gpu") if named else there) == os.getpid()
"""
    (flowckpt.directory / "placed.py").write_text(code)
    write(flowckpt.directory, 'executors = ["process:1", "gpu=process:1"]')
    for run in (("run",), ("run", "-i", "named=true")):
        assert flowckpt(*run, "placed.py", "--json").expect(0).document["output"] is False
    assert flowckpt("run", "placed.py", "--json", "--executor", "engine").expect(0).document["output"] is True
    ran = flowckpt("run", "placed.py", FLOWCKPT_EXECUTORS="nowhere:1").expect(2)
    assert "'nowhere:1' describes no executor" in ran.err
