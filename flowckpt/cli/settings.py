"""The settings and the store of the running command."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from flowckpt.cli.config.read import Settings, Source, read_settings
from flowckpt.cli.config.settings import DEFAULT_DIRECTORY, Part, make_spec_absolute
from flowckpt.cli.groups import OPENED_STORE, command_meta, remember_store
from flowckpt.cli.render.terminal import escape, say
from flowckpt.core.system.attrs_base import FieldEquality
from flowckpt.core.system.declared import shell_word
from flowckpt.engine import RunOptions, WorkflowEngine
from flowckpt.errors import EvidenceError, SettingError
from flowckpt.evidence.claims import register_database
from flowckpt.maintenance.retention import read_retention
from flowckpt.stores.adapted import CheckpointStore
from flowckpt.stores.base import StoreBase
from flowckpt.stores.file.layout import RUNS, run_directory
from flowckpt.stores.open import hide_passwords, open_store

if TYPE_CHECKING:
    from flowckpt.engine.run.notify import Listener


_KEY = "flowckpt.cli.config"


@attrs.frozen(eq=False, repr=False)
class StoreChoice(FieldEquality):
    """The store of a command.

    Attributes:
        spec: its description, with an absolute path, so that steps may change the directory.
        given: the value of `--store`, if the next command needs it to find the same store.
        key_file: the absolute path of its key file, or None.
        compression: the compression of its records.
        mirror: the description of its mirror; empty without one.
        on_mirror_error: what to do if the mirror cannot take a checkpoint.
        mirror_words: the options of the mirror, if the next command needs them.
    """

    spec: str
    given: str = ""
    key_file: str | None = None
    compression: str = "none"
    mirror: str = ""
    on_mirror_error: str = "fail"
    mirror_words: tuple[str, ...] = ()

    @property
    def shown(self) -> str:
        """The description without passwords."""
        return hide_passwords(self.spec)

    def places_of(self, workflow_id: str) -> tuple[str, str]:
        """Return where a run is stored (its directory in a file store, else the store), without and with its mirror."""
        scheme, _, path = self.spec.partition(":")
        place = str(Path(path, RUNS, run_directory(workflow_id))) if scheme == "file" else self.shown
        return place, f"{place}, mirrored in {hide_passwords(self.mirror)}" if self.mirror else place

    def report_no_runs(self, what: str = "no runs") -> bool:
        """Report that the store has no runs, and which one may be meant; return whether there is a store."""
        scheme, _, path = self.spec.partition(":")
        place = Path(path)
        exists = {"file": _has_runs(place), "sqlite": os.path.lexists(path)}.get(scheme, True)
        say(escape(f"flowckpt: {what} in {self.shown}{'' if exists else ': there is no store yet'}"))
        around = [each for each in place.parents if each / RUNS in (place, place.parent)]
        for each in (place / DEFAULT_DIRECTORY, *around) if scheme == "file" and not exists else ():
            if _has_runs(each):
                say(escape(f"Did you mean {shell_word(f'file:{each}')}?"))
        return exists

    def open(self) -> StoreBase:
        """Open the store, with its keys and its mirror.

        Raises:
            StoreSpecError: a description is invalid, or the mirror cannot encrypt although the store does.
            SettingError: the mirror is the store itself.
        """
        store = open_store(self.spec, key_file=self.key_file, compression=self.compression)
        command_meta()[OPENED_STORE] = store
        if not self.mirror:
            return store
        from flowckpt.maintenance.mirror import MirroredStore  # noqa: PLC0415 - most commands have none

        packing = self.compression if self.mirror.startswith("file:") else "none"
        mirror = open_store(self.mirror, key_file=self.key_file, compression=packing)
        return MirroredStore(store, mirror, self.on_mirror_error)


def _has_runs(place: Path) -> bool:
    return os.path.isdir(place / RUNS)  # noqa: PTH112 - False without a permission, too


def command_settings() -> Settings:
    """Return the settings at the start of the command; a step may have changed the directory since.

    Raises:
        SettingError: a setting is unknown, or has an invalid value.
    """
    meta = command_meta()
    if _KEY not in meta:
        meta[_KEY] = _register_databases(read_settings())
    settings: Settings = meta[_KEY]
    return settings


def _register_databases(settings: Settings) -> Settings:
    """Register the databases of the settings."""
    for name, spec in settings["databases"].items():
        try:
            register_database(name, spec)
        except EvidenceError as error:
            raise SettingError(error.message, setting="databases", remedy=error.remedy) from error
    return settings


def is_set_already(name: str, value: Any) -> bool:
    """Return whether the next command would use a value without its option."""
    return bool(command_settings()[name] == value)


def choose_store(
    option: str | None, environ: Mapping[str, str] | None = None, directory: Path | None = None
) -> StoreChoice:
    """Return the store of the command.

    Args:
        option: the option of the command line, or None.
        environ: the environment; the process's own by default.
        directory: where to start looking; the working directory by default.

    Raises:
        SettingError: a setting is unknown, or has an invalid value.
    """
    is_own = environ is None and directory is None
    settings = command_settings() if is_own else read_settings(environ, directory)
    spec, option_value = settings["store"], ""
    if option:
        spec = make_spec_absolute(option, Path.cwd() if directory is None else directory)
        option_value = "" if spec == settings["store"] else option
    if is_own:
        remember_store(hide_passwords(option_value))
    return _make_choice(settings, spec, option_value)


def _make_choice(settings: Settings, spec: str, given: str = "") -> StoreChoice:
    mirror = _choose_mirror(settings, spec if given else "")
    return StoreChoice(spec, given, settings["key_file"], settings["compression"], *mirror)


GIVEN_MIRROR = "flowckpt.given_mirror"
_NEARER = (Source.ENVIRONMENT, Source.PYPROJECT, Source.DEFAULT)


def _choose_mirror(settings: Settings, other: str) -> tuple[str, str, tuple[str, ...]]:
    """Return the mirror, what to do if it fails, and the options that name it.

    The mirror of the settings belongs to the store of the settings: another store would mix its runs into it.

    Args:
        settings: the settings.
        other: the store on the command line that replaces that of the settings; empty if there is none.
    """
    meta = command_meta()
    options: Mapping[str, str] = meta.get(GIVEN_MIRROR, {})
    words = [word for name, text in options.items() for word in (f"--{name.replace('_', '-')}", hide_passwords(text))]
    on_error = options.get("on_mirror_error", settings["on_mirror_error"])
    mirror, store = settings.entries["mirror"], settings.entries["store"]
    spec = mirror.value or ""
    if "mirror" in options:
        named = options["mirror"]
        spec = make_spec_absolute(named, Path.cwd()) if named else ""
    elif spec and (other or _NEARER.index(store.source) < _NEARER.index(mirror.source)):
        if GIVEN_MIRROR in meta and other != mirror.value and not meta.get("flowckpt.told_of_mirror"):
            meta["flowckpt.told_of_mirror"] = True
            message = "belongs to the store of the settings, so this run has no mirror; --mirror names one"
            say(escape(f"flowckpt: warning: the mirror of {mirror.place} {message}"))
        spec = ""
    return spec, on_error, tuple(words)


NO_COLOR = "flowckpt.no_color"
"""The key of `--no-color` in the context of a command."""


def is_color_allowed() -> bool:
    """Return whether colours and drawing on terminals are allowed.

    Raises:
        SettingError: a setting is unknown, or has an invalid value.
    """
    return not command_meta().get(NO_COLOR) and bool(command_settings()["color"])


def _engine_arguments(settings: Settings) -> dict[str, Any]:
    """Return the settings of the engine, as its arguments."""
    arguments = {
        each.setting.name: each.value for each in settings.entries.values() if each.setting.part is Part.ENGINE
    }
    return {**arguments, "retention": read_retention(settings.__getitem__)}


def create_listeners(
    choice: StoreChoice | None, settings: Settings | None = None, *, is_reported: bool = False
) -> list[Listener]:
    """Return the configured listeners: hooks and telemetry. There are no hooks inside a hook, which would start itself.

    Args:
        choice: the store of the runs, for `flowckpt` commands in a hook; None for one that only the program knows.
        settings: the settings; those of the command by default.
        is_reported: whether the run's crash loop was already reported, so that its hook does not run.

    Raises:
        SettingError: a setting is unknown or invalid, or the extra `otel` is missing.
    """
    settings = command_settings() if settings is None else settings
    hooks = [each for each in settings.entries.values() if each.setting.part is Part.HOOKS]
    arguments = {each.setting.argument: each.value for each in hooks}
    if is_reported:
        arguments.pop("on_crash_loop")
    listeners: list[Listener] = []
    if any(arguments[name] for name in arguments if name != "timeout") and "FLOWCKPT_HOOK" not in os.environ:
        from flowckpt.cli.hooks import Hooks  # noqa: PLC0415 - most commands have none

        in_file = settings.file is not None and any(each.source is Source.PYPROJECT for each in hooks)
        environment = {} if choice is None else store_variables(choice)
        directory = settings.file.parent if in_file and settings.file is not None else None
        listeners.append(Hooks(**arguments, directory=directory, environment=environment))
    if settings["otel"]:
        from flowckpt.otel import Telemetry, export_by_environment  # noqa: PLC0415 - most commands have none

        export_by_environment()
        listeners.append(Telemetry(exports_from_workers=True))
    return listeners


def create_engine(
    store: StoreBase, choice: StoreChoice, on_save_error: str | None, *, is_reported: bool = False
) -> WorkflowEngine:
    """Return the engine of a command; for the arguments, see `create_listeners`.

    Raises:
        SettingError: a setting is unknown or invalid.
    """
    arguments = {**_engine_arguments(command_settings()), "on_save_error": on_save_error or "fail"}
    return WorkflowEngine(store, listeners=create_listeners(choice, is_reported=is_reported), **arguments)


def store_variables(choice: StoreChoice) -> dict[str, str]:
    """Return the environment with which a `flowckpt` process finds the same store; command lines are visible to all users."""
    variables = {"FLOWCKPT_STORE": choice.spec, "FLOWCKPT_COMPRESSION": choice.compression}
    if choice.key_file is not None:
        variables["FLOWCKPT_KEY_FILE"] = choice.key_file
    variables |= {"FLOWCKPT_MIRROR": choice.mirror, "FLOWCKPT_ON_MIRROR_ERROR": choice.on_mirror_error}
    return variables


# For programs: an engine and options from the environment and `pyproject.toml`, as for the command.


def configured_engine(checkpoint_store: CheckpointStore | None = None, /, **arguments: Any) -> WorkflowEngine:
    """Return an engine with the store, the hooks and the settings that `flowckpt` would use in this directory.

    Args:
        checkpoint_store: another store.
        **arguments: arguments of `WorkflowEngine`; they take precedence over settings. Listeners are added to the hooks.

    Raises:
        SettingError: a setting is unknown or invalid.
        StoreSpecError: the configured store is invalid.
    """
    settings = _register_databases(read_settings())
    arguments = {**_engine_arguments(settings), **arguments}
    choice = None
    if checkpoint_store is None:
        choice = _make_choice(settings, settings["store"])
        checkpoint_store = choice.open()
    arguments["listeners"] = (*arguments.get("listeners", ()), *create_listeners(choice, settings))
    return WorkflowEngine(checkpoint_store, **arguments)


def configured_options(**given: Any) -> RunOptions:
    """Return the options with which `flowckpt` would start or resume a run in this directory.

    Args:
        **given: fields of `RunOptions`; they take precedence over settings.

    Raises:
        SettingError: a setting is unknown or invalid.
    """
    set_here = {
        name: setting.value
        for name, setting in _register_databases(read_settings()).entries.items()
        if setting.setting.part is Part.RUN and setting.source is not Source.DEFAULT
    }
    return RunOptions(**{**set_here, **given})
