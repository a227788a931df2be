"""The table of commands, groups that load a command only when it is used, and commands quoted in messages.

`flowckpt --help` must stay fast, so nothing here imports a command, the engine or a store.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click

from flowckpt.cli.render.terminal import escape
from flowckpt.core.system import external
from flowckpt.core.system.declared import shell_word
from flowckpt.core.system.lazy import load_module

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

SECTIONS: Mapping[str, Mapping[str, str]] = {
    "Run": {
        "run": "Start a run of a workflow.",
        "resume": "Resume a run from its last checkpoint.",
        "plan": "Show what a resume would do, and why; run nothing.",
        "recover": "Resume every run whose process died or whose wake-up time has come.",
        "cancel": "Stop a run for good and undo its steps.",
        "checkpoint": "Have a live run save a checkpoint now.",
    },
    "Look": {
        "list": "List runs, newest first.",
        "show": "Show a run: its status, steps and checkpoints.",
        "verify": "Check the evidence of a run against the world now.",
        "diff": "Compare two runs or checkpoints.",
        "debug": "Open a debugger in a workflow, at a recorded step.",
        "report": "Write one HTML file that shows a run.",
        "graph": "Draw the steps of a workflow or a run.",
        "ui": "Serve a local page with runs, an inbox and actions.",
    },
    "Answer": {
        "signal": "Send a signal to a run.",
        "approve": "Approve a waiting run.",
        "reject": "Reject a waiting run.",
    },
    "Label": {
        "tag": "Add, change or remove tags of a run.",
    },
    "Another history": {
        "rollback": "Make a run resume from an earlier checkpoint.",
        "fork": "Create a run from another run's history.",
    },
    "Move": {
        "export": "Write a run, or one checkpoint, to a file.",
        "import": "Read a run from an exported file.",
        "copy": "Copy runs to another store.",
    },
    "Store": {
        "store check": "Check the integrity of a store.",
        "store repair": "Set the damaged part of a run aside, and keep the rest.",
        "store stats": "Show sizes, evidence, failures and slow steps.",
        "store prune": "Remove old runs or checkpoints, and free space.",
        "store clear": "Remove a run with all its checkpoints.",
        "store pin": "Protect a checkpoint from pruning.",
        "store key": "Create, rotate or show the keys of a store.",
        "store trust": "Accept a run whose records the key does not authenticate.",
    },
    "Set up": {
        "init": "Write a pipeline, its test and settings.",
        "config": "Show each setting, its value and its source.",
        "completion": "Print the completion script of a shell.",
    },
}

COMMANDS: Mapping[str, str] = {name: text for section in SECTIONS.values() for name, text in section.items()}

_TOGETHER: Mapping[str, tuple[str, ...]] = {
    "answer": ("signal", "approve", "reject"),
    "history": ("rollback", "fork"),
    "live": ("cancel", "checkpoint", "tag"),
    "move": ("export", "import", "copy"),
    "report": ("report", "graph"),
    "setup": ("init", "config", "completion"),
    "store": tuple(name for name in COMMANDS if name.startswith("store ")),
}
"""The modules of several commands; any other command has a module of its own name."""

_GROUPS = {"store": "Check, measure, repair and prune a store, and manage its keys."}


def load_command(name: str) -> click.Command:
    """Import the module of a command and return the command: `check_command` of `commands/store.py` for `store check`."""
    module = next((module for module, names in _TOGETHER.items() if name in names), name)
    command: click.Command = getattr(
        load_module(f"flowckpt.cli.commands.{module}"), f"{name.rpartition(' ')[2]}_command"
    )
    return command


_BEFORE_COMMAND = "flowckpt.given_before_command"


def find_early_option(context: click.Context, name: str) -> str | None:
    """Return the value of `--store` or `--log-level` given before the command's name, if any."""
    value: str | None = context.meta.get(_BEFORE_COMMAND, {}).get(name)
    return value


def _remember_option(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        context.meta.setdefault(_BEFORE_COMMAND, {})[parameter.name] = value


_COMMON = {
    "--store": ("SPEC", "The store with the runs: a directory, sqlite:FILE, postgresql://…"),
    "--log-level": ("LEVEL", "The lowest level of log messages to show."),
}


def _make_common_options() -> list[click.Parameter]:
    """Return the options allowed before a command's name; the command converts and checks their values."""
    how: dict[str, Any] = {"expose_value": False, "callback": _remember_option}
    return [
        click.Option([name], metavar=metavar, help=f"{text} Also accepted after the command.", **how)
        for name, (metavar, text) in _COMMON.items()
    ]


def find_near_words(word: str, known: Iterable[str], *, most: int = 1) -> list[str]:
    """Return the known words nearest to a mistyped one, nearest first."""
    names = list(known)
    for cutoff in (0.8, 0.6):  # distant words only if no near one exists
        if words := external.difflib.get_close_matches(word, names, n=most, cutoff=cutoff):
            return words
    return []


class CommandGroup(click.Group):
    """A group of commands that share its name as a prefix; a command is loaded when it is used."""

    def __init__(self, name: str, about: str, **how: Any) -> None:
        self.prefix = "" if name == "flowckpt" else f"{name} "
        super().__init__(name, help=about, params=_make_common_options(), **how)

    @property
    def names(self) -> list[str]:
        """The names of its commands and groups, in the order of the table."""
        inner = (name.removeprefix(self.prefix) for name in COMMANDS if name.startswith(self.prefix))
        return list(dict.fromkeys(name.partition(" ")[0] for name in inner))

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands, in the order of the table."""
        return self.names

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load a command's module and return the command; a group loads nothing."""
        if cmd_name not in self.names:
            return None
        return (
            CommandGroup(cmd_name, _GROUPS[cmd_name]) if cmd_name in _GROUPS else load_command(self.prefix + cmd_name)
        )

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; the error for an unknown one names the nearest."""
        if args[0] not in self.names and not args[0].startswith("-"):
            raise click.UsageError(
                f"unknown command {f'{self.prefix}{args[0]}'!r}; {self._suggest_command(args[0])}", ctx
            )
        return super().resolve_command(ctx, args)

    def _suggest_command(self, name: str) -> str:
        """Return a sentence with the nearest commands; `prune` suggests `store prune`."""
        words: dict[str, list[str]] = {}
        for full in (
            *(() if self.prefix else self.names),
            *(each for each in COMMANDS if each.startswith(self.prefix)),
        ):
            words.setdefault(full.rpartition(" ")[2], []).append(full)
        near = find_near_words(name.lower(), words, most=3)
        commands = dict.fromkeys(full for word in near for full in words[word])
        return f"did you mean {' or '.join(commands)}?" if commands else f"the commands are {', '.join(self.names)}"

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table of commands, section by section, without loading any."""
        width = max(len(name) - len(self.prefix) for name in COMMANDS if name.startswith(self.prefix))
        for section, rows in SECTIONS.items():
            names = [name for name in rows if name.startswith(self.prefix)]
            if own := [(name.removeprefix(self.prefix).ljust(width), rows[name]) for name in names]:
                with formatter.section("Commands" if self.prefix else section):
                    formatter.write_dl(own)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete the name of a command without loading any."""
        names = [name for name in self.names if name.startswith(incomplete)]
        items = [
            external.shell_completion.CompletionItem(name, help=COMMANDS.get(f"{self.prefix}{name}", "Keep a store."))
            for name in names
        ]
        return [*items, *click.Command.shell_complete(self, ctx, incomplete)]


# Messages come from code that does not know the command line; they quote 'flowckpt show RUN'. If the next command would not
# find the store of this one, `add_store_option` adds `--store`.

_STORE_OPTION = "flowckpt.given_store"
_WITHOUT_STORE = ("store key", "config", "completion", "init")
_QUOTED = r"""'(flowckpt (?:[^'"]|'[^']*'|"[^"]*")+?)'(?=[\s.,;:)]|$)"""
"""A command between quotes, which may contain shell quotes."""

_COMMAND = rf"\bflowckpt ({'|'.join(name for name in COMMANDS if name not in _WITHOUT_STORE)})\b(?![^'\"\n]* --store\b)"


CHOSEN_RUN, OPENED_STORE = "flowckpt.chosen_run", "flowckpt.opened_store"
"""The key under which a command remembers its store and run, for errors about the content of a record."""


def command_meta(context: click.Context | None = None) -> dict[str, Any]:
    """Return what the running command remembers; an empty dict if none is running.

    Args:
        context: the context of the command; by default, of the running one.
    """
    context = context or click.get_current_context(silent=True)
    return {} if context is None else context.meta


def remember_store(spec: str) -> None:
    """Remember the store of the running command; the first choice counts.

    Args:
        spec: the value of `--store` with which the next command finds the same store, safe to show; empty if not needed.
    """
    command_meta().setdefault(_STORE_OPTION, spec)


def add_store_option(text: str, context: click.Context | None = None) -> str:
    """Return a message whose quoted commands name the store if necessary, with unambiguous quotes.

    A command is in single quotes, or in double quotes if it contains single ones.

    Args:
        text: the message.
        context: the context of the command; by default, of the running one.
    """
    if spec := command_meta(context).get(_STORE_OPTION):
        option = f"--store {escape(shell_word(spec))}"
        text = re.sub(_COMMAND, lambda found: f"{found[0]} {option}", text)
    return re.sub(_QUOTED, lambda found: f'"{found[1]}"' if "'" in found[1] else found[0], text)
