"""The data classes of the program, whose values are recorded under the name of their class.

A record must not choose what is imported or called when it is read. So nothing is imported here, and a name counts only if
it belongs to a data class (attrs, dataclass, named tuple, enum, pydantic model) at the top of one of these modules:

- the module of a workflow, which may also have imported the class by name, from wherever;
- a module of the same project that the workflow's module imports when it is imported, itself or through others.

Both are available whenever the workflow is, in every process.
"""

from __future__ import annotations

import functools
import sys
from types import ModuleType
from typing import Any

from flowckpt.core.codec import decode, encode
from flowckpt.core.codec.annotations import is_known_kind
from flowckpt.core.codec.tags import RefusedError, Registered
from flowckpt.core.codec.types import difference, from_plain, to_plain
from flowckpt.core.dsl.workflow import PROGRAM_MODULES
from flowckpt.core.identity.sources import reaches
from flowckpt.core.system.declared import module_name
from flowckpt.errors import FlowckptError


def of_class(cls: type) -> Registered | None:
    """Return the registration for values of a class; None if a record must not name the class.

    Args:
        cls: the class.
    """
    if not _is_data_class(cls):
        return None
    module = sys.modules.get(cls.__module__)
    is_at_the_top = _find_object(module, cls.__qualname__) is cls and _is_reached(cls.__module__)
    return _make_registration(cls) if is_at_the_top or any(cls in vars(root).values() for root in _roots()) else None


def named(name: str) -> Registered | None:
    """Return the class of a name in a record; None if the program has none.

    Args:
        name: the name, as the record has it.
    """
    places = {module_name(root.__name__): root.__name__ for root in _roots()}
    parts = name.split(".")
    for count in range(len(parts) - 1, 0, -1):
        module = ".".join(parts[:count])
        module = places.get(module, module)
        found = _find_object(sys.modules.get(module), ".".join(parts[count:]))
        if _is_data_class(found) and _name_of(found) == name and _is_reached(module):
            return _make_registration(found)
    bound = (value for root in _roots() for value in vars(root).values() if _is_data_class(value))
    return next((_make_registration(cls) for cls in bound if _name_of(cls) == name), None)


def _roots() -> list[ModuleType]:
    return [module for name in [*PROGRAM_MODULES] if (module := sys.modules.get(name)) is not None]


def _is_reached(module: str) -> bool:
    return module in PROGRAM_MODULES or any(reaches(root, module) for root in _roots())


def _is_data_class(cls: Any) -> bool:
    return isinstance(cls, type) and is_known_kind(cls) and cls.__module__.partition(".")[0] != "flowckpt"


def _find_object(module: ModuleType | None, qualified_name: str) -> Any:
    """Return the object of a module with a qualified name."""
    found: Any = None if module is None else vars(module)
    for part in qualified_name.split("."):
        found = (found if isinstance(found, dict) else getattr(found, "__dict__", {})).get(part)
    return found


def _name_of(cls: type) -> str:
    return f"{module_name(cls.__module__)}.{cls.__qualname__}"


def _make_registration(cls: type) -> Registered:
    build = functools.partial(from_plain, annotation=cls, place="value")
    return Registered(
        cls, _name_of(cls), _unstructure_checked, build, parts=functools.partial(to_plain, annotation=cls, place="it")
    )


def _unstructure_checked(value: Any) -> Any:
    """Split a value into its fields; refuse a value that would be restored differently."""
    cls = type(value)
    plain = to_plain(value, cls, "it")
    try:
        again = from_plain(decode(encode(plain)), cls, "it")
    except FlowckptError as error:
        raise RefusedError(error.message) from error
    if found := difference(value, again, "it"):
        raise RefusedError(found)
    return plain
