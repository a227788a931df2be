"""The settings: what kinds of values there are, and the table that options, reading and reference come from."""

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

_SWITCH = {
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
        said: the kind of value that is accepted, for an error.
        toml: its type in TOML, for the reference.
    """

    said: str
    toml: ClassVar[str] = "text"

    def from_text(self, text: str) -> Any:
        """Return the value of a text that is not empty.

        Raises:
            ValueError: it has none.
        """
        return self.from_toml(self.read(text))

    def from_toml(self, value: Any) -> Any:
        """Return the value of what TOML holds.

        Raises:
            ValueError: it is of another type, or out of its range.
        """
        if not self.takes(value):
            raise ValueError
        return tuple(value) if isinstance(value, list) else value

    def read(self, text: str) -> Any:
        """Return what a text would be in TOML.

        Raises:
            ValueError: nothing that fits.
        """
        return text

    def takes(self, value: Any) -> bool:
        """Return whether a value of TOML is of this kind."""
        raise NotImplementedError


class Text(Kind):
    """Any text but none."""

    said = "text"

    def takes(self, value: Any) -> bool:
        """Take text."""
        return isinstance(value, str) and value != ""


class Mirror(Text):
    """The description of a store that outlives the process; empty for none."""

    said = "the description of a store that outlives the process, or empty for none"

    def takes(self, value: Any) -> bool:
        """Take any store but one in memory."""
        return isinstance(value, str) and value.partition(":")[0] != "memory"


class PathKind(Text):
    """The path of a file; a relative one is relative to the working directory, or to the `pyproject.toml`."""

    said = "a path"


@attrs.frozen(eq=False, repr=False)
class Choice(FieldEquality, Kind):
    """One of a few words.

    Attributes:
        options: the words.
    """

    options: tuple[str, ...]

    @property
    def said(self) -> str:  # type: ignore[override]
        """The kind of value that is accepted."""
        return f"one of {', '.join(self.options)}"

    def takes(self, value: Any) -> bool:
        """Take one of the words."""
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
    def said(self) -> str:  # type: ignore[override]
        """The kind of value that is accepted."""
        limit = f"of at least {self.least}" if self.most is None else f"from {self.least} to {self.most}"
        return f"a whole number {limit}"

    def read(self, text: str) -> int:
        """Read the digits."""
        return int(text)

    def takes(self, value: Any) -> bool:
        """Take an integer, which True is not."""
        return type(value) is int and self.least <= value <= (value if self.most is None else self.most)


class Seconds(Kind):
    """A time of more than 0 seconds."""

    said = "a number of seconds above 0"
    toml = "number"

    def read(self, text: str) -> float:
        """Read the number."""
        return float(text)

    def from_toml(self, value: Any) -> float:
        """Take a finite number."""
        return float(super().from_toml(value))

    def takes(self, value: Any) -> bool:
        """Take a finite number."""
        return is_finite_number(value) and value > 0


class Age(Kind):
    """An age with its unit, kept as it was written."""

    said = "an age with its unit, as 90s, 45m, 12h, 30d or 2w"

    def takes(self, value: Any) -> bool:
        """Take what can be read as an age."""
        try:
            return isinstance(value, str) and age_of(value) is not None
        except SettingError:
            return False


class Switch(Kind):
    """Yes or no."""

    said = toml = "true or false"

    def read(self, text: str) -> bool | None:
        """Read what people write for yes and no."""
        return _SWITCH.get(text.lower())

    def takes(self, value: Any) -> bool:
        """Take a boolean."""
        return isinstance(value, bool)


class Hosts(Kind):
    """Hosts with their ports, as `HOST:PORT`."""

    said = "HOST:PORT, or several"
    toml = "list of text"

    def read(self, text: str) -> list[str]:
        """Read what stands between blanks and commas."""
        return [part for part in re.split(r"[\s,]+", text) if part]

    def takes(self, value: Any) -> bool:
        """Take a list."""
        return _is_list_of_text(value) and all(re.fullmatch(_HOST_AND_PORT, each) for each in value)


class Executors(Kind):
    """The places where steps can run, each as `SPEC` for those that name no executor, or as `NAME=SPEC`."""

    said = "[NAME=]SPEC, or several of different names"
    toml = "list of text"

    def read(self, text: str) -> list[str]:
        """Read what stands between blanks."""
        return text.split()

    def takes(self, value: Any) -> bool:
        """Take a list."""
        return _is_list_of_text(value) and all(value) and len({named_executor(each)[0] for each in value}) == len(value)


class Hook(Kind):
    """A hook: a command as text or list, a URL, or the environment variable that holds one of them."""

    said = "a command (text or a list of texts), an http or https URL, or @env:NAME"
    toml = "text or list of text"

    def from_toml(self, value: Any) -> Any:
        """Take text, or the words of a command."""
        return super().from_toml(value.strip() if isinstance(value, str) else value)

    def takes(self, value: Any) -> bool:
        """Take a command, a URL or a variable; none of them is used yet."""
        if not isinstance(value, str):
            return _is_list_of_text(value) and bool(value) and value[0] != ""
        if re.match(_ANY_URL, value):
            return re.match(_WEB_URL, value) is not None
        return value != "" and (not value.startswith("@") or re.fullmatch(_VARIABLE, value) is not None)


class Databases(Kind):
    """Databases by name, each as `sqlite:FILE` or `postgresql://…`."""

    said = "names with sqlite:FILE or postgresql://…, as main=sqlite:shop.db"
    toml = "table of text"

    def read(self, text: str) -> dict[str, str]:
        """Read what stands between blanks."""
        return {name: spec for name, _, spec in (each.partition("=") for each in text.split())}

    def takes(self, value: Any) -> bool:
        """Take a table."""
        return isinstance(value, dict) and all(
            isinstance(name, str) and name.isidentifier() and isinstance(spec, str) and re.fullmatch(_DATABASE, spec)
            for name, spec in value.items()
        )


def _is_list_of_text(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def named_executor(text: str) -> tuple[str, str]:
    """Return the name and the description of an executor; one without a name is the default of all steps.

    Args:
        text: `SPEC` or `NAME=SPEC`.
    """
    name, equals, description = text.partition("=")
    return (name, description) if equals and "/" not in name and ":" not in name else ("default", text)


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
    """Something that may be set.

    Attributes:
        name: its key in `[tool.flowckpt]`, and the name of the argument in Python; `table.key` for one of a table in it.
        part: what it is for.
        kind: what its values are.
        meaning: what it says, in a sentence.
        option: its option on the command line; empty if it has none.
        metavar: how the option's value is named; empty if the kind says it.
        default: the default value; None for what `default_said` says.
        default_said: what happens by default, where the default alone does not tell.
    """

    name: str
    part: Part
    kind: Kind
    meaning: str
    option: str = ""
    metavar: str = ""
    default: Any = None
    default_said: str = ""

    @property
    def variable(self) -> str:
        """Its environment variable."""
        return f"FLOWCKPT_{self.name.upper().replace('.', '_')}"

    @property
    def argument(self) -> str:
        """The name of the argument in Python."""
        return self.name.rpartition(".")[2]


def _hook(name: str, meaning: str) -> Setting:
    return Setting(f"hooks.{name}", Part.HOOKS, Hook(), meaning, default_said="none")


_ANSWERS = Choice(("rerun", "reuse", "fail"))

SETTINGS: dict[str, Setting] = {
    setting.name: setting
    for setting in (
        Setting(
            "store",
            Part.STORE,
            Text(),
            "The store with the runs: a directory, sqlite:FILE, postgresql://… or s3://…",
            option="--store",
            metavar="SPEC",
            default_said="the nearest directory .flowckpt upwards, else one in the working directory",
        ),
        Setting(
            "mirror",
            Part.MIRROR,
            Mirror(),
            "A second store that gets every checkpoint too, described like the store. Empty, also as the variable: none.",
            option="--mirror",
            metavar="SPEC",
            default_said="none",
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
            PathKind(),
            "The file with the keys that protect the store.",
            default_said="none",
        ),
        Setting(
            "compression",
            Part.STORE,
            Choice(("none", "gzip", "zstd", "auto")),
            "How the store packs what it writes.",
            default="none",
        ),
        Setting(
            "every",
            Part.RUN,
            Count(1),
            "Take a checkpoint after N steps without one.",
            option="--every",
            metavar="N",
            default_said="only where a step asks for one",
        ),
        Setting(
            "interval",
            Part.RUN,
            Seconds(),
            "Take a checkpoint after a step when the last is that many seconds old.",
            option="--interval",
            metavar="SECONDS",
            default_said="only where a step asks for one",
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
            "Keep the N newest checkpoints of a run that is at work; older ones go with the next save.",
            default_said="all of them",
        ),
        Setting(
            "max_age",
            Part.RETENTION,
            Age(),
            "Keep the checkpoints of a run that is at work for so long, as 12h or 30d; older ones go with a later save.",
            default_said="forever",
        ),
        Setting(
            "max_bytes",
            Part.RETENTION,
            Count(1),
            "Keep the newest checkpoints of a run that is at work whose records fit into so many bytes, all together.",
            default_said="all of them",
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
            "List the N newest former generations of a run that continues as another one; their steps are not kept.",
            default=10,
        ),
        Setting(
            "retry_budget",
            Part.ENGINE,
            Count(0),
            "How many retries a run may make, all its steps and attempts together, where the run does not say.",
            default_said="any number",
        ),
        Setting(
            "max_crashes",
            Part.ENGINE,
            Count(0),
            "How often a run may die at the same step before a resume refuses it, where the run does not say; 0 for no limit.",
            default=5,
        ),
        Setting(
            "on_stale",
            Part.RUN,
            _ANSWERS,
            "If evidence, arguments or a version tag have changed.",
            option="--on-stale",
            default_said="what moved is run again; what cannot be checked stops the resume",
        ),
        Setting(
            "on_code_change",
            Part.RUN,
            _ANSWERS,
            "If a step's function was edited.",
            option="--on-code-change",
            default_said="on a terminal it asks, elsewhere it stops",
        ),
        Setting(
            "on_package_change",
            Part.RUN,
            Choice(("rerun", "reuse")),
            "Run steps again if an installed package that their code uses has another version, or reuse their results; "
            "a plan mentions it in any case.",
            option="--on-package-change",
            default="reuse",
        ),
        Setting(
            "reuse",
            Part.RUN,
            Choice(("prefix", "inputs")),
            "prefix: everything from the first stale step on is run again. inputs: after it, results are reused where "
            "steps are called with the same arguments.",
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
            "A host that claims of evidence may reach; repeat it for several.",
            option="--allow-network",
            metavar="HOST:PORT",
            default=(),
            default_said="none",
        ),
        Setting(
            "databases",
            Part.EVIDENCE,
            Databases(),
            'The databases that claims of evidence name: db_row("main", …) reads the one called main.',
            default={},
            default_said="none",
        ),
        Setting(
            "executors",
            Part.RUN,
            Executors(),
            "The place where steps run: process, process:8, thread, engine, dask://host:8786, dask:local:4. With a name, steps with "
            ".on(NAME); without, all steps that name none and may run there.",
            option="--executor",
            metavar="[NAME=]SPEC",
            default=(),
            default_said="in the engine's process",
        ),
        Setting(
            "jobs",
            Part.COMMAND,
            Count(1, 256),
            "Check up to N claims at the same time.",
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
            "How the progress of a run is shown: drawn, in lines with their time, or not at all.",
            option="--progress",
            default_said="rich on a terminal, else plain",
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
            "Whether the traceback of flowckpt's own errors is shown too.",
            default=False,
        ),
        Setting(
            "otel",
            Part.OTEL,
            Switch(),
            "Whether runs are traced and measured with OpenTelemetry (extra otel).",
            default=False,
        ),
        _hook("on_failure", "A command or URL for each run that failed."),
        _hook("on_suspended", "A command or URL for each run that waits, or that a signal stopped."),
        _hook("on_completed", "A command or URL for each run that completed."),
        _hook("on_crash_loop", "A command or URL for each resume refused because of a crash loop."),
        Setting(
            "hooks.timeout",
            Part.HOOKS,
            Seconds(),
            "Seconds for a hook with all its tries.",
            default=30.0,
        ),
    )
}


TABLES = frozenset(name.partition(".")[0] for name in SETTINGS if "." in name)
"""The tables within `[tool.flowckpt]`."""


# Where the runs are, when only a directory is known.


DEFAULT_DIRECTORY = ".flowckpt"
_SCHEMES_OF_PATHS = {"file": DEFAULT_DIRECTORY, "sqlite": f"{DEFAULT_DIRECTORY}.db"}


def absolute_spec(spec: str, directory: Path) -> str:
    """Return the description of a store with an absolute path, where it has one."""
    if spec.startswith(("/", "./", "../")) or (":" not in spec and (directory / spec).is_dir()):
        spec = f"file:{spec}"  # as typed by people who mean a directory
    scheme, colon, rest = spec.partition(":")
    if colon and scheme in _SCHEMES_OF_PATHS and not rest.startswith("//"):  # open_store() judges such a URL
        return f"{scheme}:{Path(os.path.normpath(directory / (rest or _SCHEMES_OF_PATHS[scheme])))}"
    return spec


def nearest_store(directory: Path) -> str:
    """Return the description of the default store."""
    for candidate in (directory, *directory.parents):
        place = candidate / DEFAULT_DIRECTORY
        # A link to nothing is a disk that is not mounted, and no store that is not there yet.
        if place.is_dir() or place.is_symlink():
            return f"file:{place}"
    return f"file:{directory / DEFAULT_DIRECTORY}"
