"""Where the store comes from: the command line, the environment, pyproject.toml, the nearest directory, the default."""

from __future__ import annotations

import click
import pytest

from flowckpt.cli.settings import StoreChoice, choose_store, color_allowed


@pytest.fixture
def deep(tmp_path):
    found = tmp_path / "a" / "b"
    found.mkdir(parents=True)
    return found


def test_each_source_goes_before_the_next(tmp_path, deep):
    found = tmp_path / "a"

    def spec(option=None, **environ):
        return choose_store(option, environ, deep).spec

    assert spec() == f"file:{deep / '.flowckpt'}"
    (tmp_path / ".flowckpt").mkdir()
    assert spec() == f"file:{tmp_path / '.flowckpt'}"
    (found / "pyproject.toml").write_text('[tool.flowckpt]\nstore = "file:kept"\n')
    assert spec() == f"file:{found / 'kept'}"  # relative to the file that says it
    assert spec(FLOWCKPT_STORE="file:x") == f"file:{deep / 'x'}"
    assert spec(FLOWCKPT_STORE="") == f"file:{found / 'kept'}"
    assert spec("file:../y", FLOWCKPT_STORE="file:x") == f"file:{found / 'y'}"
    assert spec("memory:") == "memory:"
    assert spec("runs") == "runs"  # no scheme: the store refuses it with its own words


def test_the_option_is_repeated_only_where_it_is_needed(deep):
    assert choose_store("file:.flowckpt", {}, deep) == StoreChoice(f"file:{deep / '.flowckpt'}")
    assert choose_store("file:other", {}, deep).given == "file:other"
    assert choose_store("file:other", {"FLOWCKPT_STORE": "file:other"}, deep).given == ""


def test_an_unrelated_pyproject_is_not_even_parsed(deep):
    (deep / "pyproject.toml").write_text("[[[")
    assert choose_store(None, {}, deep).spec == f"file:{deep / '.flowckpt'}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[tool.flowckpt]\nstore = 3", "tool.flowckpt.store must be text, got 3"),
        ("[tool.flowckpt]\nstore = ''", "tool.flowckpt.store must be text"),
        ("[tool.flowckpt]\nsotre = 'x'", "tool.flowckpt.sotre is no setting; the settings are store"),
        ("[tool.flowckpt]\ncolor = 'no'", "tool.flowckpt.color must be true or false"),
        ("[tool]\nflowckpt = 1", "tool.flowckpt must be a table"),
        ("flowckpt = [", "is no valid TOML"),
    ],
)
def test_bad_settings_name_the_file_and_the_key(deep, text, said):
    (deep / "pyproject.toml").write_text(text)
    with pytest.raises(click.UsageError) as caught:
        choose_store(None, {}, deep)
    assert str(deep / "pyproject.toml") in caught.value.message
    assert said in caught.value.message


def test_color(deep):
    assert color_allowed({}, deep)
    assert not color_allowed({"NO_COLOR": "1"}, deep)
    assert not color_allowed({"TERM": "dumb"}, deep)
    (deep / "pyproject.toml").write_text("[tool.flowckpt]\ncolor = false\n")
    assert not color_allowed({}, deep)
