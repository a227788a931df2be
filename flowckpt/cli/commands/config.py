"""`flowckpt config`."""

from __future__ import annotations

import re
from typing import Any

import click

from flowckpt.cli.config.read import Found, unknown_variables
from flowckpt.cli.config.settings import Part
from flowckpt.cli.notices import warn
from flowckpt.cli.options import color_option, json_option
from flowckpt.cli.render.tables import show_table
from flowckpt.cli.render.terminal import json_text, write
from flowckpt.cli.settings import command_settings
from flowckpt.stores.open import shown_spec

_EXAMPLE = """\b
Examples:
  flowckpt config
  FLOWCKPT_STORE=sqlite:runs.db flowckpt config --json"""

_PATH_OF_URL = re.compile(r"^(https?://)(?:[^/?#]*@)?([^/?#]*).*", re.IGNORECASE | re.DOTALL)
"""A webhook: its path is often a secret, as that of a chat program is."""

_HEADER = ("SETTING", "VALUE", "FROM", "VARIABLE", "OPTION")


@click.command("config", epilog=_EXAMPLE)
@json_option
@color_option
def command(as_json: bool, no_color: bool) -> None:
    """Show each setting, its value here, and where it comes from: the environment, pyproject.toml, or the default.

    Passwords of stores and paths of webhooks are hidden. Exits with 2 where a setting is unknown or has an invalid value.
    """
    settings = command_settings()
    for name, remedy in unknown_variables().items():
        warn(f"the environment variable {name} is not a setting. {remedy}".rstrip())
    if as_json:
        document = {
            "file": None if settings.file is None else str(settings.file),
            "settings": [_document(found) for found in settings.found.values()],
        }
        write(f"{json_text(document, indent=2)}\n")
    else:
        rows = [_row(found) for found in settings.found.values()]
        show_table(_HEADER, rows, wrapped=("VALUE", "FROM"), no_color=no_color)


def _document(found: Found) -> dict[str, Any]:
    value = found.value
    return {
        "name": found.setting.name,
        "value": list(value) if isinstance(value, tuple) else _shown(found),
        "source": str(found.source),
        "place": found.place,
        "variable": found.setting.variable,
        "option": found.setting.option,
    }


def _row(found: Found) -> list[str]:
    value = _shown(found)
    if isinstance(value, bool):
        value = str(value).lower()
    elif isinstance(value, tuple):
        value = " ".join(value) or None
    elif isinstance(value, dict):
        value = " ".join(f"{name}={spec}" for name, spec in value.items()) or None
    return [
        found.setting.name,
        "-" if value is None else str(value),
        found.place or str(found.source),
        found.setting.variable,
        found.setting.option or "-",
    ]


def _shown(found: Found) -> Any:
    if found.setting.name == "store":
        return shown_spec(found.value)
    if found.setting.part is Part.HOOKS and isinstance(found.value, str):
        return _PATH_OF_URL.sub(r"\1\2/…", found.value)
    return found.value
