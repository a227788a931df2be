"""The reference of the settings is the table in the code."""

from pages import DOCS, prose

from flowckpt.cli.config.settings import SETTINGS, Choice, Count, Part, Setting
from flowckpt.cli.groups import COMMANDS, load_command
from flowckpt.cli.options import SettingOption

PAGE = DOCS / "reference" / "settings.md"
HEADER = "| key | variable | option | type | default | in Python | meaning |"
MANY = 10


def commands_with(option: str) -> str:
    """Return the commands with the option of a setting, as the page names them."""
    found = {
        name
        for name in COMMANDS
        for parameter in load_command(name).params
        if option in parameter.opts and (isinstance(parameter, SettingOption) or parameter.is_flag)
    }
    others = [name for name in COMMANDS if name not in found]
    named = [name for name in COMMANDS if name in found] if len(found) < MANY else others
    return ("all but " if len(found) >= MANY else "") + ", ".join(f"`{name}`" for name in named)


def type_of(setting: Setting) -> str:
    if isinstance(setting.kind, Choice):
        return ", ".join(f"`{option}`" for option in setting.kind.options)
    return setting.kind.expected if isinstance(setting.kind, Count) else setting.kind.toml


def default_of(setting: Setting) -> str:
    shown = str(setting.default).lower() if isinstance(setting.default, bool) else setting.default
    return setting.default_text or f"`{shown}`"


def row(setting: Setting) -> str:
    option = f"`{setting.option}` on {commands_with(setting.option)}" if setting.option else "–"
    cells = [
        f"`{setting.name}`",
        f"`{setting.variable}`",
        option,
        type_of(setting),
        default_of(setting),
        "–" if setting.part is Part.COMMAND else setting.part.value,
        setting.meaning,
    ]
    return f"| {' | '.join(cells)} |"


def test_the_table_of_the_page_is_that_of_the_code():
    written = [line for _, line in prose(PAGE) if line.startswith("|")]
    made = [HEADER, "|---|---|---|---|---|---|---|", *map(row, SETTINGS.values())]
    assert written == made, "write this:\n" + "\n".join(made)


def test_every_option_of_the_table_is_on_some_command():
    assert [setting.name for setting in SETTINGS.values() if setting.option and not commands_with(setting.option)] == []
