"""The settings: kinds of values, and the table from which options, readers and the reference are derived."""

from __future__ import annotations

import os
import re
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar

import attrs

from flowckpt.core.system.attrs_base import FieldEquality
from flowckpt.core.system.numbers import age_of, is_finite_number
from flowckpt.errors import SettingError

SWITCH_WORDS = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}
_ANY_URL = r"[A-Za-z][A-Za-z0-9+.-]*://\S*$"
_WEB_URL = r"(?i)https?://[^\s/?#]"
_VARIABLE = r"@env:[A-Za-z_][A-Za-z0-9_]*"
_DATABASE = r"sqlite:.+|postgres(ql)?://.+"
_HOST_AND_PORT = r".+:[0-9]+"


class Kind:
    """A kind of value.

    Attributes:
        expected: a description of accepted values, for an error.
        toml: its type in TOML, for the reference.
    """

    expected: str
    toml: ClassVar[str] = "text"

    def from_text(self, text: str) -> Any:
        """Return the value of a text that is not empty.

        Raises:
            ValueError: the text is invalid.
        """
        return self.from_toml(self.read(text))

    def from_toml(self, value: Any) -> Any:
        """Return the value of a TOML value.

        Raises:
            ValueError: it has the wrong type, or is out of range.
        """
        if not self.accepts(value):
            raise ValueError
        return tuple(value) if isinstance(value, list) else value

    def read(self, text: str) -> Any:
        """Return the TOML value that a text stands for.

        Raises:
            ValueError: the text is invalid.
        """
        return text

    def accepts(self, value: Any) -> bool:
        """Return whether a TOML value is of this kind."""
        raise NotImplementedError


class Text(Kind):
    """Any text that is not empty."""

    expected = "text"

    def accepts(self, value: Any) -> bool:
        """Accept text."""
        return isinstance(value, str) and value != ""


class Mirror(Text):
    """The spec of a store that outlives the process; empty for none."""

    expected = "the spec of a store that outlives the process, or empty for none"

    def accepts(self, value: Any) -> bool:
        """Accept any store except one in memory."""
        return isinstance(value, str) and value.partition(":")[0] != "memory"


class FilePath(Text):
    """The path of a file, relative to the working directory or to the `pyproject.toml`."""

    expected = "a path"


@attrs.frozen(eq=False, repr=False)
class Choice(FieldEquality, Kind):
    """One of a few words.

    Attributes:
        options: the words.
    """

    options: tuple[str, ...]

    @property
    def expected(self) -> str:  # type: ignore[override]
        """The accepted words."""
        return f"one of {', '.join(self.options)}"

    def accepts(self, value: Any) -> bool:
        """Accept one of the words."""
        return isinstance(value, str) and value in self.options


@attrs.frozen(eq=False, repr=False)
class Count(FieldEquality, Kind):
    """A whole number.

    Attributes:
        least: the smallest one.
        most: the largest one, or None.
    """

    least: int = 1
    most: int | None = None
    toml = "integer"

    @property
    def expected(self) -> str:  # type: ignore[override]
        """The accepted range."""
        limit = f"of at least {self.least}" if self.most is None else f"from {self.least} to {self.most}"
        return f"a whole number {limit}"

    def read(self, text: str) -> int:
        """Read the digits."""
        return int(text)

    def accepts(self, value: Any) -> bool:
        """Accept an integer, but not True."""
        return type(value) is int and self.least <= value <= (value if self.most is None else self.most)


class Seconds(Kind):
    """A time of more than 0 seconds."""

    expected = "a number of seconds above 0"
    toml = "number"

    def read(self, text: str) -> float:
        """Read the number."""
        return float(text)

    def from_toml(self, value: Any) -> float:
        """Return the number as a float."""
        return float(super().from_toml(value))

    def accepts(self, value: Any) -> bool:
        """Accept a finite number."""
        return is_finite_number(value) and value > 0


class Age(Kind):
    """An age with its unit, kept as it was written."""

    expected = "an age with its unit, such as 90s, 45m, 12h, 30d or 2w"

    def accepts(self, value: Any) -> bool:
        """Accept an age."""
        try:
            return isinstance(value, str) and age_of(value) is not None
        except SettingError:
            return False


class Switch(Kind):
    """Yes or no."""

    expected = toml = "true or false"

    def read(self, text: str) -> bool | None:
        """Read the usual words for yes and no."""
        return SWITCH_WORDS.get(text.lower())

    def accepts(self, value: Any) -> bool:
        """Accept a boolean."""
        return isinstance(value, bool)


class Hosts(Kind):
    """Hosts with their ports, as `HOST:PORT`."""

    expected = "HOST:PORT, or several"
    toml = "list of text"

    def read(self, text: str) -> list[str]:
        """Split at blanks and commas."""
        return [part for part in re.split(r"[\s,]+", text) if part]

    def accepts(self, value: Any) -> bool:
        """Accept a list of hosts with ports."""
        return _is_list_of_text(value) and all(re.fullmatch(_HOST_AND_PORT, each) for each in value)


class Executors(Kind):
    """Executors, each as `NAME=SPEC`, or as `SPEC` for steps that name no executor."""

    expected = "[NAME=]SPEC, or several with different names"
    toml = "list of text"

    def read(self, text: str) -> list[str]:
        """Split at blanks."""
        return text.split()

    def accepts(self, value: Any) -> bool:
        """Accept a list without repeated names."""
        return _is_list_of_text(value) and all(value) and len({split_executor(each)[0] for each in value}) == len(value)


class Hook(Kind):
    """A hook: a command as text or list, a URL, or the environment variable that holds one of them."""

    expected = "a command (text or a list of texts), an http or https URL, or @env:NAME"
    toml = "text or list of text"

    def from_toml(self, value: Any) -> Any:
        """Return text without blanks around it, or the words of a command."""
        return super().from_toml(value.strip() if isinstance(value, str) else value)

    def accepts(self, value: Any) -> bool:
        """Accept a command, a URL or a variable, without running or reading it."""
        if not isinstance(value, str):
            return _is_list_of_text(value) and bool(value) and value[0] != ""
        if re.match(_ANY_URL, value):
            return re.match(_WEB_URL, value) is not None
        return value != "" and (not value.startswith("@") or re.fullmatch(_VARIABLE, value) is not None)


class Databases(Kind):
    """Databases by name, each as `sqlite:FILE` or `postgresql://…`."""

    expected = "names with sqlite:FILE or postgresql://…, such as main=sqlite:shop.db"
    toml = "table of text"

    def read(self, text: str) -> dict[str, str]:
        """Split at blanks and the first `=`."""
        return {name: spec for name, _, spec in (each.partition("=") for each in text.split())}

    def accepts(self, value: Any) -> bool:
        """Accept a table of names and databases."""
        return isinstance(value, dict) and all(
            isinstance(name, str) and name.isidentifier() and isinstance(spec, str) and re.fullmatch(_DATABASE, spec)
            for name, spec in value.items()
        )


def _is_list_of_text(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def split_executor(text: str) -> tuple[str, str]:
    """Return the name and the spec of an executor; without a name, it is the default of all steps.

    Args:
        text: `SPEC` or `NAME=SPEC`.
    """
    name, equals, spec = text.partition("=")
    return (name, spec) if equals and "/" not in name and ":" not in name else ("default", text)


class Part(Enum):
    """The part of the program that a setting belongs to; the value is its name in the reference."""

    STORE = "`open_store`"
    MIRROR = "`MirroredStore`"
    ENGINE = "`WorkflowEngine`"
    RETENTION = "`Retention`"
    RUN = "`RunOptions`"
    HOOKS = "`Hooks`"
    EVIDENCE = "`register_database`"
    OTEL = "`Telemetry`"
    COMMAND = "the command"


@attrs.frozen(eq=False, repr=False)
class Setting(FieldEquality):
    """A setting.

    Attributes:
        name: its key in `[tool.flowckpt]`, and the name of the argument in Python; `table.key` for a key of a table in it.
        part: the part of the program that it configures.
        kind: the kind of its values.
        meaning: its meaning, in one or two sentences.
        option: its option on the command line; empty if it has none.
        metavar: the name of the option's value; empty to derive it from the kind.
        default: the default value; None if `default_text` describes it.
        default_text: the default in words, if the value alone is unclear.
    """

    name: str
    part: Part
    kind: Kind
    meaning: str
    option: str = ""
    metavar: str = ""
    default: Any = None
    default_text: str = ""

    @property
    def variable(self) -> str:
        """Its environment variable."""
        return f"FLOWCKPT_{self.name.upper().replace('.', '_')}"

    @property
    def argument(self) -> str:
        """The name of the argument in Python."""
        return self.name.rpartition(".")[2]


def _hook_setting(name: str, meaning: str) -> Setting:
    return Setting(f"hooks.{name}", Part.HOOKS, Hook(), meaning, default_text="none")


_ANSWERS = Choice(("rerun", "reuse", "fail"))

SETTINGS: dict[str, Setting] = {
    setting.name: setting
    for setting in (
        Setting(
            "store",
            Part.STORE,
            Text(),
            "The store with the runs: a directory (a new one as ./NAME or file:NAME), sqlite:FILE, postgresql://… or s3://…",
            option="--store",
            metavar="SPEC",
            default_text="the nearest directory .flowckpt upwards, else one in the working directory",
        ),
        Setting(
            "mirror",
            Part.MIRROR,
            Mirror(),
            "A second store that gets every checkpoint, with a spec like the store. Empty for none, also in the variable.",
            option="--mirror",
            metavar="SPEC",
            default_text="none",
        ),
        Setting(
            "on_mirror_error",
            Part.MIRROR,
            Choice(("fail", "continue")),
            "If the mirror cannot take a checkpoint: the save fails, or the run continues without waiting for the mirror.",
            option="--on-mirror-error",
            default="fail",
        ),
        Setting(
            "key_file",
            Part.STORE,
            FilePath(),
            "The file with the keys of the store.",
            default_text="none",
        ),
        Setting(
            "compression",
            Part.STORE,
            Choice(("none", "gzip", "zstd", "auto")),
            "How the store compresses records.",
            default="none",
        ),
        Setting(
            "every",
            Part.RUN,
            Count(1),
            "Take a checkpoint after N steps without one.",
            option="--every",
            metavar="N",
            default_text="only at steps with a checkpoint",
        ),
        Setting(
            "interval",
            Part.RUN,
            Seconds(),
            "Take a checkpoint after a step if the last one is at least this many seconds old.",
            option="--interval",
            metavar="SECONDS",
            default_text="only at steps with a checkpoint",
        ),
        Setting(
            "on_save_error",
            Part.ENGINE,
            Choice(("fail", "continue")),
            "If the checkpoint after a step cannot be saved: end the run, or report it and continue.",
            option="--on-save-error",
            default="fail",
        ),
        Setting(
            "keep_last",
            Part.RETENTION,
            Count(1),
            "Keep the N newest checkpoints of a live run; later saves remove older ones.",
            default_text="all of them",
        ),
        Setting(
            "max_age",
            Part.RETENTION,
            Age(),
            "Keep the checkpoints of a live run for this long, such as 12h or 30d; later saves remove older ones.",
            default_text="forever",
        ),
        Setting(
            "max_bytes",
            Part.RETENTION,
            Count(1),
            "Keep the newest checkpoints of a live run whose records together fit into this many bytes.",
            default_text="all of them",
        ),
        Setting(
            "on_success",
            Part.RETENTION,
            Choice(("keep", "keep_last", "clear")),
            "A completed run: keep it, keep only its last checkpoint, or remove it.",
            default="keep",
        ),
        Setting(
            "keep_generations",
            Part.RETENTION,
            Count(1),
            "List the N newest earlier generations of a run that uses continue_as; their steps are not kept.",
            default=10,
        ),
        Setting(
            "retry_budget",
            Part.ENGINE,
            Count(0),
            "Total retries for all steps and attempts of a run without a budget of its own.",
            default_text="any number",
        ),
        Setting(
            "max_crashes",
            Part.ENGINE,
            Count(0),
            "How many crashes at the same step make a crash loop, for runs without a limit of their own; 0 for no limit.",
            default=5,
        ),
        Setting(
            "on_stale",
            Part.RUN,
            _ANSWERS,
            "If evidence, arguments or a version tag have changed.",
            option="--on-stale",
            default_text="changed steps run again; claims that cannot be checked stop the resume",
        ),
        Setting(
            "on_code_change",
            Part.RUN,
            _ANSWERS,
            "If a step's function was edited.",
            option="--on-code-change",
            default_text="ask on a terminal, else stop",
        ),
        Setting(
            "on_package_change",
            Part.RUN,
            Choice(("rerun", "reuse")),
            "If an installed package that a step's code uses has another version: run the step again, or reuse its result. "
            "A plan mentions it in both cases.",
            option="--on-package-change",
            default="reuse",
        ),
        Setting(
            "reuse",
            Part.RUN,
            Choice(("prefix", "inputs")),
            "prefix: everything from the first stale step runs again. inputs: after a stale step, steps with unchanged "
            "arguments keep their results.",
            option="--reuse",
            default="prefix",
        ),
        Setting(
            "verify",
            Part.RUN,
            Choice(("stat", "hash")),
            "How files are checked: hash reads every byte, stat skips files that look untouched.",
            option="--verify",
            default="hash",
        ),
        Setting(
            "allow_network",
            Part.RUN,
            Hosts(),
            "A host that checks of evidence may connect to; repeat it for several.",
            option="--allow-network",
            metavar="HOST:PORT",
            default=(),
            default_text="none",
        ),
        Setting(
            "databases",
            Part.EVIDENCE,
            Databases(),
            'The databases of evidence claims, by name: db_row("main", …) reads the database main.',
            default={},
            default_text="none",
        ),
        Setting(
            "executors",
            Part.RUN,
            Executors(),
            "The place of steps: process, process:8, thread, engine, dask://host:8786, dask:local:4. With NAME, for steps with "
            ".on(NAME); without, for all steps that name no executor and may run there.",
            option="--executor",
            metavar="[NAME=]SPEC",
            default=(),
            default_text="in the engine's process",
        ),
        Setting(
            "jobs",
            Part.COMMAND,
            Count(1, 256),
            "Check up to N claims in parallel.",
            option="--jobs",
            metavar="N",
            default=1,
        ),
        Setting(
            "color",
            Part.COMMAND,
            Switch(),
            "Whether output on terminals has colors; --no-color, NO_COLOR and TERM=dumb remove them in any case.",
            option="--no-color",
            default=True,
        ),
        Setting(
            "progress",
            Part.COMMAND,
            Choice(("rich", "plain", "none")),
            "How the progress of a run is shown: rich draws it, plain prints lines with times, none shows nothing.",
            option="--progress",
            default_text="rich on a terminal, else plain",
        ),
        Setting(
            "log_level",
            Part.COMMAND,
            Choice(("debug", "info", "warning", "error")),
            "Lowest level of flowckpt's log messages shown on standard error.",
            option="--log-level",
            default="warning",
        ),
        Setting(
            "traceback",
            Part.COMMAND,
            Switch(),
            "Whether tracebacks of flowckpt's own errors are shown.",
            default=False,
        ),
        Setting(
            "otel",
            Part.OTEL,
            Switch(),
            "Whether runs are traced and measured with OpenTelemetry (extra otel).",
            default=False,
        ),
        _hook_setting("on_failure", "A command or URL for each run that failed."),
        _hook_setting("on_suspended", "A command or URL for each run that waits or was stopped by a signal."),
        _hook_setting("on_completed", "A command or URL for each run that completed."),
        _hook_setting("on_crash_loop", "A command or URL for each resume refused because of a crash loop."),
        Setting(
            "hooks.timeout",
            Part.HOOKS,
            Seconds(),
            "Seconds for all tries of a hook.",
            default=30.0,
        ),
    )
}


TABLES = frozenset(name.partition(".")[0] for name in SETTINGS if "." in name)
"""The tables within `[tool.flowckpt]`."""


# Specs of stores, and the default store of a directory.


DEFAULT_DIRECTORY = ".flowckpt"
_SCHEMES_OF_PATHS = {"file": DEFAULT_DIRECTORY, "sqlite": f"{DEFAULT_DIRECTORY}.db"}


def make_spec_absolute(spec: str, directory: Path) -> str:
    """Return the spec of a store with an absolute path, if it has a path; a `~` that no shell has expanded is expanded."""
    if spec.startswith(("/", ".", "~/")) or (":" not in spec and (directory / spec).is_dir()):
        spec = f"file:{spec}"  # a directory was typed without a scheme
    scheme, colon, rest = spec.partition(":")
    if colon and scheme in _SCHEMES_OF_PATHS and not rest.startswith("//"):  # open_store() refuses such a URL
        path = os.path.expanduser(rest or _SCHEMES_OF_PATHS[scheme])  # noqa: PTH111 - an unknown home raises nothing
        return f"{scheme}:{Path(os.path.normpath(directory / path))}"
    return spec


def find_nearest_store(directory: Path) -> str:
    """Return the spec of the default store."""
    for candidate in (directory, *directory.parents):
        place = candidate / DEFAULT_DIRECTORY
        # A dangling link is a disk that is not mounted, not a missing store.
        if place.is_dir() or place.is_symlink():
            return f"file:{place}"
    return f"file:{directory / DEFAULT_DIRECTORY}"
