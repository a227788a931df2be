"""Options and arguments that several commands have."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import click
from click.shell_completion import CompletionItem

F = TypeVar("F", bound=Callable[..., Any])

if TYPE_CHECKING:
    _ParamType: TypeAlias = click.ParamType[Any]
else:
    _ParamType = click.ParamType  # generic only from click 8.4 on


class KeyValue(_ParamType):
    """`KEY=VALUE`, split at the first `=`."""

    name = "K=V"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Split the text; a value that has been split already is taken as it is."""
        if isinstance(value, tuple):
            return value
        key, equals, text = str(value).partition("=")
        if not equals or not key:
            self.fail(f"{value!r} is not of the form KEY=VALUE", param, ctx)
        return key, text


class RunName(_ParamType):
    """The id of a run; a shell can complete it."""

    name = "run"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Take any text but none."""
        if not value:
            self.fail("the id of a run cannot be empty", param, ctx)
        return str(value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Complete the id from the store."""
        from flowckpt.cli.stored_runs import ids_beginning_with  # noqa: PLC0415 - only when a shell asks

        store = ctx.params.get("store")
        return [CompletionItem(run, help=text) for run, text in ids_beginning_with(incomplete, store)]


class StepName(_ParamType):
    """A step of the run that stands before it: a path, or a name; a shell can complete it."""

    name = "step"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Take any text but none."""
        if not value:
            self.fail("the name of a step cannot be empty", param, ctx)
        return str(value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Complete the path from the run's record."""
        from flowckpt.cli.stored_runs import steps_beginning_with  # noqa: PLC0415 - only when a shell asks

        run = ctx.params.get("run") or next(iter(ctx.args), None)  # click stops at an option without its value
        found = steps_beginning_with(incomplete, run, ctx.params.get("store")) if run else []
        return [CompletionItem(path) for path in found]


class TargetName(_ParamType):
    """Where a workflow is; a shell completes the file."""

    name = "target"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Leave it to the shell, which knows files."""
        return [CompletionItem(incomplete, type="file")]


def store_option(command: F) -> F:
    """Add `--store`."""
    return click.option(
        "--store",
        metavar="SPEC",
        help="Where the runs are, as file:DIRECTORY. Else $FLOWCKPT_STORE, then [tool.flowckpt] store in "
        "pyproject.toml, then the nearest .flowckpt upwards.",
    )(command)


def color_option(command: F) -> F:
    """Add `--no-color`."""
    return click.option("--no-color", is_flag=True, help="Plain text, nothing drawn. So does $NO_COLOR.")(command)


def json_option(command: F) -> F:
    """Add `--json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")(command)


def events_option(command: F) -> F:
    """Add `--events`."""
    return click.option("--events", "as_events", is_flag=True, help="Print the events as JSON lines.")(command)


def input_option(command: F) -> F:
    """Add `-i`."""
    return click.option(
        "-i",
        "--input",
        "inputs",
        metavar="K=V",
        type=KeyValue(),
        multiple=True,
        help="An input of the workflow, converted by its annotation; lists and objects as JSON.",
    )(command)


def target_option(command: F) -> F:
    """Add `--target`."""
    return click.option(
        "--target", type=TargetName(), help="Where the workflow is now, as for run; recorded at the start otherwise."
    )(command)


def verify_option(command: F) -> F:
    """Add `--verify`."""
    return click.option(
        "--verify",
        type=click.Choice(["stat", "hash"]),
        help="How files are checked: hash reads every byte (the default); stat skips files that look untouched.",
    )(command)


class HostAndPort(_ParamType):
    """`HOST:PORT`, or `[ADDRESS]:PORT`."""

    name = "host:port"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Take what names a host and a port."""
        host, _, port = str(value).rpartition(":")
        if not host or not (port.isascii() and port.isdigit()):
            self.fail(f"{value!r} is not of the form HOST:PORT", param, ctx)
        return str(value)


def network_option(command: F) -> F:
    """Add `--allow-network`."""
    return click.option(
        "--allow-network",
        type=HostAndPort(),
        metavar="HOST:PORT",
        multiple=True,
        help="A host that claims of evidence may reach; none by default.",
    )(command)


def policy_options(command: F) -> F:
    """Add what says what a resume does with stale results; the parameters are named as the fields of `RunOptions`."""
    answers = click.Choice(["rerun", "reuse", "fail"])
    added = (
        click.option(
            "--on-stale",
            type=answers,
            help="Where evidence, arguments or a version moved. By default what moved is run again, and what cannot be "
            "checked stops the resume.",
        ),
        click.option("--on-code-change", type=answers, help="Where a step's function was edited; by default, fail."),
        click.option(
            "--reuse",
            type=click.Choice(["prefix", "inputs"]),
            help="prefix (the default): everything from the first stale step on is run again. inputs: behind it, "
            "results are reused where steps are called with the same arguments.",
        ),
        verify_option,
        network_option,
        click.option(
            "--from",
            "from_step",
            metavar="STEP",
            type=StepName(),
            help="Run everything again from this step on: its path, or its name.",
        ),
        click.option("--force", is_flag=True, help="Run again whatever the resume would stop at."),
    )
    for option in reversed(added):
        command = option(command)
    return command


def without_repeats(pairs: tuple[tuple[str, str], ...], option: str) -> dict[str, str]:
    """Return the pairs of a repeated option as a dict.

    Args:
        pairs: keys and values.
        option: the option, for the error.

    Raises:
        click.UsageError: a key is given twice.
    """
    found: dict[str, str] = {}
    for key, value in pairs:
        if key in found:
            raise click.UsageError(f"{option} {key}=… is given twice: {found[key]!r} and {value!r}")
        found[key] = value
    return found
