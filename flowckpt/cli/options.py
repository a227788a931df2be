"""Options and arguments that several commands have."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar

import click
from click.core import ParameterSource

from flowckpt.cli.config.read import Source
from flowckpt.cli.config.settings import (
    SETTINGS,
    Choice,
    Count,
    Executors,
    Hosts,
    Mirror,
    Seconds,
    Text,
    split_executor,
)
from flowckpt.cli.groups import find_early_option
from flowckpt.cli.notices import show_messages
from flowckpt.cli.render.terminal import reserve_for_document
from flowckpt.cli.settings import GIVEN_MIRROR, NO_COLOR, choose_store, command_settings
from flowckpt.core.system import external
from flowckpt.core.system.declared import shell_word
from flowckpt.core.system.ids import why_invalid_run_id
from flowckpt.core.system.numbers import age_of
from flowckpt.errors import SettingError

F = TypeVar("F", bound=Callable[..., Any])
V = TypeVar("V")

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    _ParamType: TypeAlias = click.ParamType[Any]
else:
    _ParamType = click.ParamType  # generic only from click 8.4 on


class KeyValue(_ParamType):
    """`KEY=VALUE`, split at the first `=`."""

    name = "K=V"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Split the text; return a pair unchanged."""
        if isinstance(value, tuple):
            return value
        key, equals, text = str(value).partition("=")
        if not equals or not key:
            self.fail(f"{value!r} is not of the form KEY=VALUE", param, ctx)
        return key, text


class _Name(_ParamType):
    """A text that is not empty."""

    what: ClassVar[str]
    """Its name in an error."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Refuse an empty text."""
        if not value:
            self.fail(f"{self.what} cannot be empty", param, ctx)
        return str(value)


class RunName(_Name):
    """A run id, or a unique prefix of one; a shell can complete it.

    Args:
        is_unfinished: whether `--last` means the last run that can be resumed.
    """

    name = "run"
    what = "a run id"

    def __init__(self, *, is_unfinished: bool = False) -> None:
        self.is_unfinished = is_unfinished

    def get_missing_message(self, param: click.Parameter, ctx: click.Context | None) -> str:
        """Return the message for a missing id."""
        return "Give an id, a unique prefix of one, or --last; 'flowckpt list' shows the ids"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Complete the id from the store."""
        from flowckpt.cli.runs import complete_run_ids  # noqa: PLC0415 - only when a shell asks

        store = ctx.params.get("store")
        return [
            external.shell_completion.CompletionItem(run, help=text)
            for run, text in complete_run_ids(incomplete, store)
        ]


class NewRunName(_ParamType):
    """The id for a new run."""

    name = "run"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Refuse a text that cannot be a run id."""
        if why := why_invalid_run_id(value):
            raise click.UsageError(f"--id {why}", ctx)
        return str(value)


class StepName(_Name):
    """A step (a path or a name) of the run given before it; a shell can complete it."""

    name = "step"
    what = "the name of a step"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Complete the path from the run's record."""
        from flowckpt.cli.runs import complete_steps  # noqa: PLC0415 - only when a shell asks

        run = ctx.params.get("run") or next(iter(ctx.args), None)  # click stops at an option without its value
        paths = complete_steps(incomplete, run, ctx.params.get("store")) if run else []
        return [external.shell_completion.CompletionItem(path) for path in paths]


class TargetName(_ParamType):
    """The place of a workflow; a shell completes the file."""

    name = "target"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Let the shell complete files."""
        return [external.shell_completion.CompletionItem(incomplete, type="file")]


class CheckpointName(_Name):
    """A checkpoint of a run: its id or its sequence."""

    name = "checkpoint"
    what = "the name of a checkpoint"

    def get_missing_message(self, param: click.Parameter, ctx: click.Context | None) -> str:
        """Return the message for a missing checkpoint."""
        return "Give an id or a sequence; 'flowckpt show RUN --checkpoints' shows them"


class ParsedText(_ParamType):
    """A text that a function parses.

    Args:
        name: the kind of the text.
        parse: returns the value of a text; raises ValueError or SettingError for an invalid one.
        expected: a description of valid texts, for the error.
    """

    def __init__(self, name: str, parse: Callable[[str], Any], expected: str) -> None:
        self.name = name
        self._parse = parse
        self._expected = expected

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse a text."""
        try:
            return self._parse(value)
        except (ValueError, SettingError):
            self.fail(f"{value!r} is not {self._expected}", param, ctx)


AGE = ParsedText("age", lambda text: age_of(text, "AGE"), "an age; write 90s, 45m, 12h, 30d or 2w")


class SecondsRange(click.FloatRange):
    """A range of seconds without NaN, and with infinity on request.

    Args:
        least: the smallest.
        most: the largest; unlimited by default.
        min_open: whether to exclude the smallest itself.
        has_infinity: whether to accept `inf`.
    """

    name = "number of seconds"

    def __init__(
        self, least: float, most: float | None = None, *, min_open: bool = False, has_infinity: bool = False
    ) -> None:
        super().__init__(least, most, min_open=min_open)
        self.has_infinity = has_infinity

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Parse a number of seconds."""
        seconds = float(super().convert(value, param, ctx))
        if math.isnan(seconds) or (math.isinf(seconds) and not self.has_infinity):
            self.fail(f"{value!r} is not a number of seconds", param, ctx)
        return seconds


_SECTIONS = {
    "Workflow": ("inputs", "inputs_file", "target", "is_here", "run", "new_id", "tags", "outputs", "accept_import"),
    "Which": (
        *("last", "statuses", "workflow", "workflows", "limit", "keep", "older_than", "max_bytes", "checkpoint"),
        *("from_step", "attempt", "reasons", "verified", "dry_run", "if_attempt"),
    ),
    "Reuse": (
        "on_stale",
        "on_code_change",
        "on_package_change",
        "reuse",
        "verify",
        "allow_network",
        "force",
        "no_cache",
        "only_plan",
    ),
    "Steps in doubt": ("done", "not_done", "by", "comment"),
    "Saving": ("every", "interval", "on_save_error", "mirror", "on_mirror_error"),
    "Limits and ends": ("retry_budget", "max_crashes", "stay", "rolls_back", "steal"),
    "Execution": ("executors", "jobs", "check", "same_process"),
    "Output": ("as_json", "as_events", "progress", "no_color"),
}
_LONG = 10
"""A help page with more options shows them by section."""


class Command(click.Command):
    """A command. It accepts `--last` instead of RUN, and a long help page shows its options by section.

    Its help ends with a paragraph of examples, which the help page shows after the options.
    """

    allow_extra_args = True  # so that `parse_args` can say what is wrong with one

    def __init__(self, *, help: str | None = None, **how: Any) -> None:  # noqa: A002 - as click names it
        about, _, examples = inspect.cleandoc(help or "").partition("\n\nExamples:\n")
        super().__init__(help=about, epilog=f"\b\nExamples:\n{examples}", **how)
        kinds = [each.type for each in self.params if isinstance(each.type, RunName)]
        if kinds:
            which = "unfinished " if kinds[0].is_unfinished else ""
            text = f"Instead of RUN: the {which}run that was updated last."
            self.params.append(click.Option(["--last"], is_flag=True, expose_value=False, help=text))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; `--last` takes the place of RUN."""
        if any(each.name == "last" for each in self.params) and "--last" in args:
            parsed, _, _ = self.make_parser(ctx).parse_args(list(args))
            if parsed.get("last"):
                from flowckpt.cli.runs import LAST  # noqa: PLC0415 - as above

                args = [LAST, *args]
        unexpected = super().parse_args(ctx, args)
        if unexpected and not ctx.resilient_parsing:
            first = unexpected[0]
            has_inputs = "=" in first and any("-i" in each.opts for each in self.params)
            advice = f"did you mean -i {shell_word(first)}?" if has_inputs else f"see {ctx.command_path} --help"
            raise click.UsageError(f"unexpected argument {first!r}; {advice}", ctx)
        return unexpected

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command with the store that its options and the settings choose."""
        if "store" in ctx.params:
            ctx.params["store"] = choose_store(ctx.params["store"])
        return super().invoke(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, by section if there are many."""
        options = [each for each in self.get_params(ctx) if isinstance(each, click.Option) and not each.hidden]
        rows: dict[str, list[tuple[str, str]]] = {section: [] for section in (*_SECTIONS, "Options")}
        for each in options:
            section = next((name for name, members in _SECTIONS.items() if each.name in members), "Output")
            if (record := each.get_help_record(ctx)) is not None:
                rows[section if len(options) > _LONG else "Options"].append(record)
        for section, records in rows.items():
            if records:
                with formatter.section(section):
                    formatter.write_dl(records)


_TYPES: dict[type, Callable[[Any], click.ParamType[Any]]] = {
    Text: lambda kind: click.STRING,
    Mirror: lambda kind: ParsedText("spec", kind.from_text, kind.expected),
    Choice: lambda kind: click.Choice(kind.options),
    Count: lambda kind: click.IntRange(kind.least, kind.most),
    Seconds: lambda kind: SecondsRange(0, min_open=True),
    Hosts: lambda kind: ParsedText("host:port", lambda text: kind.from_toml([text])[0], "of the form HOST:PORT"),
    Executors: lambda kind: click.STRING,
}


class SettingOption(click.Option):
    """An option whose default comes from the settings.

    Args:
        declarations: its spellings.
        setting: the name of the setting.
        **how: what click takes.
    """

    def __init__(self, declarations: Sequence[str], *, setting: str, **how: Any) -> None:
        super().__init__(declarations, **how)
        self.setting = setting

    def consume_value(self, ctx: click.Context, opts: Mapping[str, Any]) -> tuple[Any, ParameterSource]:
        """Take the value from the command line, the options before the command, or (not for completion) the settings."""
        value, source = super().consume_value(ctx, opts)
        if source is ParameterSource.DEFAULT and (before := find_early_option(ctx, self.setting)) is not None:
            return before, ParameterSource.COMMANDLINE
        if source is ParameterSource.DEFAULT and not ctx.resilient_parsing:
            setting = command_settings().entries[self.setting]
            if setting.source is Source.ENVIRONMENT:
                return setting.value, ParameterSource.ENVIRONMENT
            if setting.source is Source.PYPROJECT:
                return setting.value, ParameterSource.DEFAULT_MAP
        return value, source


def setting_option(name: str, **how: Any) -> Callable[[F], F]:
    """Return a decorator that adds the option of a setting to a command."""
    setting = SETTINGS[name]
    return click.option(
        setting.option,
        name,
        cls=SettingOption,
        setting=name,
        type=_TYPES[type(setting.kind)](setting.kind),
        multiple=isinstance(setting.kind, Hosts | Executors),
        metavar=setting.metavar or None,
        help=setting.meaning
        + (f" Default: {default}." if (default := setting.default_text or setting.default) else ""),
        **how,
    )


def combine_options(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Return a decorator that adds several options to a command, in their order on the help page."""

    def add(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def _remember_mirror(ctx: click.Context, parameter: click.Parameter, value: str | None) -> None:
    options = ctx.meta.setdefault(GIVEN_MIRROR, {})
    if ctx.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE:
        options[parameter.name] = value


def _show_messages(ctx: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if not ctx.resilient_parsing:
        show_messages(value or SETTINGS["log_level"].default)


def _remember_color(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    context.meta[NO_COLOR] = value


def _reserve_if_given(context: click.Context, parameter: click.Parameter, value: bool) -> bool:
    if value and not context.resilient_parsing:
        reserve_for_document()
    return value


PROGRESS = "flowckpt.progress"
"""The key of `--progress` in the context of a command."""


def _choose_progress(ctx: click.Context, parameter: click.Parameter, value: str | None) -> None:
    ctx.meta[PROGRESS] = value


store_option = combine_options(
    setting_option("store"),
    setting_option("log_level", expose_value=False, is_eager=True, callback=_show_messages),
)
"""The options of every command that reads a store."""

mirror_option = setting_option("mirror", expose_value=False, callback=_remember_mirror)
"""`choose_store` finds it."""

mirror_options = combine_options(
    mirror_option, setting_option("on_mirror_error", expose_value=False, callback=_remember_mirror)
)

color_option = click.option(
    "--no-color", is_flag=True, expose_value=False, callback=_remember_color, help="No colors. So does $NO_COLOR."
)
"""`is_color_allowed` finds it."""

json_option = click.option(
    "--json", "as_json", is_flag=True, callback=_reserve_if_given, help="Print one JSON document and nothing else."
)
"""With it, what the store or the program prints goes to standard error."""

events_option = combine_options(
    click.option(
        "--events", "as_events", is_flag=True, callback=_reserve_if_given, help="Print the events as JSON lines."
    ),
    setting_option("progress", expose_value=False, callback=_choose_progress),
)
"""The options of every command that drives a run."""


def pairs_option(*declarations: str, **how: Any) -> Callable[[F], F]:
    """Return a decorator that adds a repeatable option of pairs to a command, which gets them as a dict."""
    return click.option(*declarations, type=KeyValue(), multiple=True, callback=_collect_option, **how)


def _collect_option(
    ctx: click.Context, parameter: click.Parameter, pairs: tuple[tuple[str, str], ...]
) -> dict[str, str]:
    return collect_pairs(pairs, parameter.opts[0])


input_option = pairs_option(
    "-i",
    "--input",
    "inputs",
    metavar="K=V",
    help="An input of the workflow, converted by its annotation; lists and objects as JSON. Give a secret as "
    "@env:NAME, @file:PATH, or - to be asked for it.",
)

wait_option = click.option(
    "--wait",
    "patience",
    type=SecondsRange(0, 86_400),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for the process of a live run.",
)

program_options = combine_options(
    click.option(
        "--target",
        type=TargetName(),
        help="The target, if the workflow has moved. Default: as recorded at the start.",
    ),
    click.option(
        "--here",
        "is_here",
        is_flag=True,
        help="From now on, run in the current directory instead of the one in which the run was started, with the program "
        "at the same place below it, if there is one.",
    ),
)
"""The present place of a run's program."""

verify_option, network_option = setting_option("verify"), setting_option("allow_network")
executor_option = setting_option("executors")

# The parameters of these are named as the fields of `RunOptions`.

rollback_option = click.option(
    "--no-rollback",
    "rolls_back",
    is_flag=True,
    flag_value=False,
    default=True,
    help="If the run fails or is stopped, do not undo steps with .rollback().",
)

cache_option = click.option(
    "--no-cache",
    is_flag=True,
    help="Run steps with .cache() even if another run has a result that they could take.",
)

stale_options = combine_options(
    setting_option("on_stale"), setting_option("on_code_change"), setting_option("on_package_change")
)
"""The ways of treating stale results."""

policy_options = combine_options(
    stale_options,
    setting_option("reuse"),
    verify_option,
    network_option,
    click.option(
        "--from",
        "from_step",
        metavar="STEP",
        type=StepName(),
        help="Run this step and everything after it again; with --reuse inputs, only this step and those whose arguments "
        "change. STEP is a path or a name.",
    ),
    click.option(
        "--done",
        metavar="STEP[=JSON]",
        multiple=True,
        help="Settle a step in doubt as done, with JSON as its output (default: what its .adopt() returns). "
        "Recorded; repeatable.",
    ),
    click.option(
        "--not-done",
        metavar="STEP",
        multiple=True,
        help="Settle a step in doubt as not done, so that it runs. Recorded; repeatable.",
    ),
    click.option(
        "--force",
        is_flag=True,
        help="Run again every step at which the resume would stop, and drop recorded steps that the workflow no longer yields.",
    ),
    cache_option,
)
"""The policy for stale results."""

limit_options = combine_options(
    click.option(
        "--retry-budget",
        type=click.IntRange(0),
        metavar="N",
        help="Total retries for all steps and attempts of the run; recorded. On resume, sets a new budget.",
    ),
    click.option(
        "--max-crashes",
        type=click.IntRange(0),
        metavar="N",
        help="Crashes at one step after which a resume refuses the run; 0: no limit. Default: 5. Recorded.",
    ),
    click.option(
        "--stay",
        type=SecondsRange(0, has_infinity=True),
        metavar="SECONDS",
        help="When everything waits, keep the process up to SECONDS in total (inf: forever). Default: only for waits that end within a minute.",
    ),
)
"""The limits of a run."""

by_option = click.option("--by", metavar="WHO", help="The person who decides; by default the user of this machine.")


def parse_executors(texts: tuple[str, ...]) -> dict[str, str]:
    """Return the descriptions of executors by name.

    Args:
        texts: the descriptions, as typed or set.

    Raises:
        click.UsageError: a name is given twice.
        ExecutorError: a description is invalid.
        SettingError: a name is not valid.
    """
    executors = collect_pairs(map(split_executor, texts), "--executor")
    if executors:
        from flowckpt.execution.remote.executors import check_executors  # noqa: PLC0415 - most commands name no executor

        check_executors(executors)
    return executors


def find_user_name() -> str:
    """Return the user name; empty if it is unknown."""
    try:
        return external.getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container without a table of users
        return ""


def parse_json(text: str, option: str, example: str) -> Any:
    """Return the value of a JSON text.

    Args:
        text: the text.
        option: the option, for the error.
        example: an example with a text.

    Raises:
        click.UsageError: it is not JSON.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        message = f"{option} is not JSON: {error}; put a text in double quotes: {example}"
        raise click.UsageError(message) from None


def split_pair(text: str) -> tuple[str, str | None]:
    """Return the key and the value of `KEY[=VALUE]`; None without a value."""
    key, equals, value = text.partition("=")
    return key, value if equals else None


def collect_pairs(pairs: Iterable[tuple[str, V]], option: str) -> dict[str, V]:
    """Return the pairs of a repeated option as a dict.

    Args:
        pairs: keys and values.
        option: the option, for the error.

    Raises:
        click.UsageError: a key is given twice.
    """
    collected: dict[str, V] = {}
    for key, value in pairs:
        if key in collected:
            raise click.UsageError(f"{option} {key}=… is given twice")  # without the values: they may be secret
        collected[key] = value
    return collected
