"""For programs that want what the command has: an engine and options from the environment and `pyproject.toml`."""

from __future__ import annotations

from typing import Any

from flowckpt.engine import RunOptions, WorkflowEngine
from flowckpt.retention.rule import set_retention
from flowckpt.settings.reading import Source, read_settings
from flowckpt.settings.table import Part
from flowckpt.stores.base import CheckpointStore
from flowckpt.stores.opening import open_store


def configured_engine(checkpoint_store: CheckpointStore | None = None, /, **arguments: Any) -> WorkflowEngine:
    """Return an engine on the store that `flowckpt` would use here, with the settings of the engine.

    Args:
        checkpoint_store: another store.
        **arguments: arguments of `WorkflowEngine`; they go before the settings.

    Raises:
        SettingError: a setting is unknown, or has a value that cannot be.
        StoreSpecError: the store that is set is none.
    """
    settings = read_settings()
    for found in settings.found.values():
        if found.setting.part is Part.ENGINE:
            arguments.setdefault(found.setting.name, found.value)
    arguments.setdefault("retention", set_retention(settings.__getitem__))
    if checkpoint_store is None:
        protection = {name: settings[name] for name in ("key_file", "compression")}
        checkpoint_store = open_store(settings["store"], **protection)
    return WorkflowEngine(checkpoint_store, **arguments)


def configured_options(**given: Any) -> RunOptions:
    """Return the options with which `flowckpt` would start or resume a run here.

    Args:
        **given: fields of `RunOptions`; they go before the settings.

    Raises:
        SettingError: a setting is unknown, or has a value that cannot be.
    """
    set_here = {
        name: found.value
        for name, found in read_settings().found.items()
        if found.setting.part is Part.RUN and found.source is not Source.DEFAULT
    }
    return RunOptions(**{**set_here, **given})
