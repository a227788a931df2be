"""The settings of the command that is under way, and the store that it works on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click

from flowckpt.cli.config.read import Settings, Source, read_settings
from flowckpt.cli.config.settings import Part, absolute_spec
from flowckpt.cli.groups import remember_store
from flowckpt.core.system.attrs_base import FieldEquality
from flowckpt.engine import RunOptions, WorkflowEngine
from flowckpt.errors import EvidenceError, SettingError
from flowckpt.evidence.claims import register_database
from flowckpt.maintenance.retention import rule
from flowckpt.maintenance.retention.rule import set_retention
from flowckpt.stores.adapted import CheckpointStore
from flowckpt.stores.base import StoreBase
from flowckpt.stores.file.layout import RUNS, run_directory
from flowckpt.stores.open import open_store, shown_spec

if TYPE_CHECKING:
    from flowckpt.engine.run.notify import Listener
    from flowckpt.maintenance.retention.rule import Retention


_KEY = "flowckpt.cli.config"


@attrs.frozen(eq=False, repr=False)
class StoreChoice(FieldEquality):
    """The store that a command works on.

    Attributes:
        spec: its description, with an absolute path, so that a step that changes the directory changes nothing.
        given: what stands on the command line, where the next command would not find the same store without it.
        key_file: the file with its keys, as an absolute path; None for none.
        compression: how it packs what it writes.
    """

    spec: str
    given: str = ""
    key_file: str | None = None
    compression: str = "none"

    @property
    def shown(self) -> str:
        """The description as it may be shown: without a password."""
        return shown_spec(self.spec)

    def place_of(self, workflow_id: str) -> str:
        """Return where a run is stored: its directory in a file store, else the store."""
        scheme, _, path = self.spec.partition(":")
        return str(Path(path, RUNS, run_directory(workflow_id))) if scheme == "file" else self.shown


def command_settings() -> Settings:
    """Return the settings as they were when the command began: a step may change the directory.

    Raises:
        SettingError: a setting is unknown, or has an invalid value.
    """
    context = click.get_current_context(silent=True)
    if context is None:
        return _with_databases(read_settings())
    if _KEY not in context.meta:
        context.meta[_KEY] = _with_databases(read_settings())
    settings: Settings = context.meta[_KEY]
    return settings


def _with_databases(settings: Settings) -> Settings:
    """Register the databases of the settings."""
    for name, spec in settings["databases"].items():
        try:
            register_database(name, spec)
        except EvidenceError as error:
            raise SettingError(error.message, setting="databases", remedy=error.remedy) from error
    return settings


def is_set_already(name: str, value: Any) -> bool:
    """Tell whether the next command would find a value without its option."""
    return bool(command_settings()[name] == value)


def choose_store(
    option: str | None, environ: Mapping[str, str] | None = None, directory: Path | None = None
) -> StoreChoice:
    """Return the store to work on.

    Args:
        option: what the command line says, or None.
        environ: the environment; the process's own where not given.
        directory: where to look from; the working directory where not given.

    Raises:
        SettingError: a setting is unknown, or has an invalid value.
    """
    is_own = environ is None and directory is None
    found = command_settings() if is_own else read_settings(environ, directory)
    spec, given = found["store"], ""
    if option:
        spec = absolute_spec(option, Path.cwd() if directory is None else directory)
        given = "" if spec == found["store"] else option
    if is_own:
        remember_store(shown_spec(given))
    return StoreChoice(spec, given, found["key_file"], found["compression"])


def retention_set_here() -> Retention | None:
    """Return which checkpoints stay, as far as anything is set.

    Raises:
        SettingError: a setting is unknown, or has an invalid value.
    """
    found = command_settings()
    return rule.set_retention(found.__getitem__)


def color_allowed() -> bool:
    """Tell whether terminals may be drawn on, as far as the command line does not say.

    Raises:
        SettingError: a setting is unknown, or has an invalid value.
    """
    return bool(command_settings()["color"])


def progress_setting() -> str | None:
    """Return how progress is shown, as far as the command line does not say; None if nothing is set.

    Raises:
        SettingError: a setting is unknown, or has an invalid value.
    """
    found: str | None = command_settings()["progress"]
    return found


def limits_setting() -> dict[str, Any]:
    """Return the limits of runs that have none of their own, as arguments of the engine.

    Raises:
        SettingError: a setting is unknown, or has an invalid value.
    """
    settings = command_settings()
    return {name: settings[name] for name in ("retry_budget", "max_crashes")}


def max_crashes_setting() -> int:
    """Return how often a run may die at one step, where neither the command line nor its record says.

    Raises:
        SettingError: a setting is unknown, or has an invalid value.
    """
    return int(command_settings()["max_crashes"])


def listeners_setting(
    choice: StoreChoice | None, settings: Settings | None = None, *, is_reported: bool = False
) -> list[Listener]:
    """Return the listeners that are set: hooks, and telemetry. Within a hook, there are no hooks: it would start itself.

    Args:
        choice: the store of the runs, for a `flowckpt` command in a hook; None for one that only the program knows.
        settings: the settings; those of the command by default.
        is_reported: whether the crash loop of the run was reported before, and its hook does not run.

    Raises:
        SettingError: a setting is unknown or invalid, or the extra `otel` is missing.
    """
    settings = command_settings() if settings is None else settings
    found = [each for each in settings.found.values() if each.setting.part is Part.HOOKS]
    given = {each.setting.argument: each.value for each in found}
    if is_reported:
        given.pop("on_crash_loop")
    listeners: list[Listener] = []
    if any(given[name] for name in given if name != "timeout") and "FLOWCKPT_HOOK" not in os.environ:
        from flowckpt.cli.hooks import Hooks  # noqa: PLC0415 - most commands have none

        in_file = settings.file is not None and any(each.source is Source.PYPROJECT for each in found)
        environment = {} if choice is None else store_variables(choice)
        directory = settings.file.parent if in_file and settings.file is not None else None
        listeners.append(Hooks(**given, directory=directory, environment=environment))
    if settings["otel"]:
        from flowckpt.otel import Telemetry, export_by_environment  # noqa: PLC0415 - most commands have none

        export_by_environment()
        listeners.append(Telemetry(exports_from_workers=True))
    return listeners


def command_engine(
    store: StoreBase, choice: StoreChoice, on_save_error: str | None, *, is_reported: bool = False
) -> WorkflowEngine:
    """Return the engine with which a command drives a run; for the arguments, see `listeners_setting`.

    Raises:
        SettingError: a setting is unknown or invalid.
    """
    return WorkflowEngine(
        store,
        on_save_error=on_save_error or "fail",
        retention=retention_set_here(),
        listeners=listeners_setting(choice, is_reported=is_reported),
        **limits_setting(),
    )


def store_variables(choice: StoreChoice) -> dict[str, str]:
    """Return the environment with which a `flowckpt` process finds the same store: a command line is seen by everybody."""
    found = {"FLOWCKPT_STORE": choice.spec, "FLOWCKPT_COMPRESSION": choice.compression}
    if choice.key_file is not None:
        found["FLOWCKPT_KEY_FILE"] = choice.key_file
    return found


# For programs that want what the command has: an engine and options from the environment and `pyproject.toml`.


def configured_engine(checkpoint_store: CheckpointStore | None = None, /, **arguments: Any) -> WorkflowEngine:
    """Return an engine with the store, the hooks and the settings that `flowckpt` would use in this directory.

    Args:
        checkpoint_store: another store.
        **arguments: arguments of `WorkflowEngine`; they take precedence over settings. Listeners are added to the hooks.

    Raises:
        SettingError: a setting is unknown or invalid.
        StoreSpecError: the configured store is invalid.
    """
    settings = _with_databases(read_settings())
    for found in settings.found.values():
        if found.setting.part is Part.ENGINE:
            arguments.setdefault(found.setting.name, found.value)
    arguments.setdefault("retention", set_retention(settings.__getitem__))
    choice = None
    if checkpoint_store is None:
        choice = StoreChoice(settings["store"], "", settings["key_file"], settings["compression"])
        checkpoint_store = open_store(choice.spec, key_file=choice.key_file, compression=choice.compression)
    arguments["listeners"] = (*arguments.get("listeners", ()), *listeners_setting(choice, settings))
    return WorkflowEngine(checkpoint_store, **arguments)


def configured_options(**given: Any) -> RunOptions:
    """Return the options with which `flowckpt` would start or resume a run in this directory.

    Args:
        **given: fields of `RunOptions`; they take precedence over settings.

    Raises:
        SettingError: a setting is unknown or invalid.
    """
    set_here = {
        name: found.value
        for name, found in _with_databases(read_settings()).found.items()
        if found.setting.part is Part.RUN and found.source is not Source.DEFAULT
    }
    return RunOptions(**{**set_here, **given})
