"""Fill the generated blocks of docs/reference/cli.md from the help of the commands.

    python docs/generate_cli.py

A block stands between `<!-- generated: flowckpt run -->` and `<!-- end -->`; all other text is written by hand.
A test checks that each command has a block and that each block is up to date.
"""

import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import click

from flowckpt.cli.main import group

PAGE = Path(__file__).parent / "reference" / "cli.md"
COMMON = ("--store", "--log-level", "--no-color", "--help")  # left out of the usage of each command
SHARED = 3  # an option that so many commands have with the same help is described once
WIDTH = 110

_BLOCK = re.compile(r"(<!-- generated: (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)


def commands(within: click.Group = group, prefix: str = "flowckpt") -> Iterator[tuple[str, click.Command]]:
    """Yield each command with its full name, in the order of the help."""
    context = click.Context(within)
    for name in within.list_commands(context):
        command = within.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, f"{prefix} {name}")
        elif not command.hidden:
            yield f"{prefix} {name}", command


def usage(name: str, command: click.Command) -> str:
    """Return the usage of a command: all its arguments and options, without those that all have."""
    arguments = []
    for each in command.params:
        if isinstance(each, click.Argument):
            text = each.metavar or (each.name or "").upper()
            if isinstance(each.type, click.Choice):
                text = "|".join(each.type.choices)
            text = text.rstrip("…") + ("…" if each.nargs == -1 else "")
            arguments.append(text if each.required else f"[{text}]")
    options = [
        f"[{_spelling(each)}]" + ("…" if each.multiple else "") for each in _options(command) if not _is_common(each)
    ]
    lines, line = [], name
    for part in [*arguments, *options]:
        if len(line) + len(part) >= WIDTH:
            lines.append(line)
            line = "   "
        line += f" {part}"
    return "\n".join([*lines, line])


def _options(command: click.Command) -> list[click.Option]:
    return [each for each in command.params if isinstance(each, click.Option) and not each.hidden]


def _is_common(option: click.Option) -> bool:
    return not set(COMMON).isdisjoint(option.opts)


def _value(option: click.Option) -> str:
    if option.is_flag or option.count:
        return ""
    if isinstance(option.type, click.Choice):
        return " " + "|".join(str(choice) for choice in option.type.choices)
    return f" {option.metavar or option.type.name.upper()}"


def _spelling(option: click.Option) -> str:
    return f"{max(option.opts, key=len)}{_value(option)}"


def option_rows(options: list[click.Option]) -> list[str]:
    """Return the rows of a table of options."""
    rows = []
    for each in options:
        opts = sorted(each.opts, key=len) + list(each.secondary_opts)
        spelled = ", ".join(f"`{opt}{_value(each)}`" for opt in opts).replace("|", "\\|")
        text = " ".join((each.help or "").split()).replace("|", "\\|")
        if each.show_default and isinstance(each.default, (str, int, float)):
            text += f" Default: `{each.default}`."
        if each.multiple and "repeat" not in text.lower():
            text += " Repeatable."
        rows.append(f"| {spelled} | {text} |")
    return rows


def paragraphs(text: str | None) -> Iterator[str]:
    """Yield the paragraphs of a help text; `\\b` keeps the lines of one."""
    for each in re.split(r"\n\s*\n", (text or "").strip()):
        lines = [line.strip("\b").rstrip() for line in each.splitlines()]
        if each.lstrip().startswith("\b"):
            kept = [line for line in lines if line.strip()]
            if kept and kept[0].strip() in ("Example:", "Examples:"):
                kept = kept[1:]
            indent = min((len(line) - len(line.lstrip()) for line in kept), default=0)
            yield "```sh\n" + "\n".join(line[indent:] for line in kept) + "\n```"
        else:
            yield " ".join(line.strip() for line in lines if line.strip())


def shared() -> list[str]:
    """Return the rows of the options that several commands have with the same help, most commands first."""
    counts = Counter(row for _, command in commands() for row in option_rows(_options(command)))
    return [row for row, count in counts.most_common() if count >= SHARED]


def block_of(name: str, command: click.Command, elsewhere: list[str]) -> str:
    """Return what is generated for a command; `elsewhere` are the rows of options that are described elsewhere."""
    parts = [f"```text\n{usage(name, command)}\n```", *(part for part in paragraphs(command.help) if part)]
    rows = [row for row in option_rows(_options(command)) if row not in elsewhere]
    if rows:
        parts.append("\n".join(["| option | meaning |", "|---|---|", *rows]))
    others = [
        f"`{max(each.opts, key=len)}`"
        for each in _options(command)
        if option_rows([each])[0] in elsewhere and not _is_common(each)
    ]
    if others:
        parts.append(f"[Shared options](#shared-options): {', '.join(others)}.")
    parts += [part for part in paragraphs(command.epilog) if part]
    return "\n\n".join(parts)


def table() -> str:
    """Return the table of the commands."""
    rows = ["| command | does |", "|---|---|"]
    for name, command in commands():
        place = name.removeprefix("flowckpt ").replace(" ", "-")
        rows.append(f"| [`{name}`](#{place}) | {command.get_short_help_str(300)} |")
    return "\n".join(rows)


def generated() -> dict[str, str]:
    """Return the text of each generated block by its name."""
    rows = shared()
    return {
        "commands": table(),
        "shared options": "\n".join(["| option | meaning |", "|---|---|", *rows]),
        **{name: block_of(name, command, rows) for name, command in commands()},
    }


def filled(page: str) -> str:
    """Return the page with each block up to date.

    Raises:
        KeyError: a block has a name that no command has.
    """
    made = generated()
    return _BLOCK.sub(lambda match: f"{match[1]}\n{made[match[2]]}\n\n{match[3]}", page)


def named(page: str) -> list[str]:
    """Return the names of the blocks on a page."""
    return [match[2] for match in _BLOCK.finditer(page)]


def main() -> None:
    """Fill the page; say which commands have no block yet."""
    text = PAGE.read_text(encoding="utf-8")
    if missing := generated().keys() - set(named(text)):
        sys.exit(f"add blocks to {PAGE.name}: " + ", ".join(sorted(missing)))
    PAGE.write_text(filled(text), encoding="utf-8")


if __name__ == "__main__":
    main()
