"""Classes that a step may return, in a module of their own: their annotations are text, as with any modern module."""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, NamedTuple, TypedDict, TypeVar

import attrs
import pydantic

T = TypeVar("T")


class Color(enum.Enum):
    RED = "r"
    BOTH = (1, 2)


class Label(enum.StrEnum):
    A = "a"


class Level(enum.IntEnum):
    LOW = 1


class Bits(enum.IntFlag):
    READ = 1
    WRITE = 2


class OldLabel(str, enum.Enum):  # noqa: UP042
    A = "a"


class Access(enum.Flag):
    READ = 1
    WRITE = 2


@attrs.frozen
class Point:
    x: int
    y: float = 0.0


@attrs.frozen
class Point3(Point):
    z: int = 0


@attrs.define
class Kept:
    _secret: str
    items: list[Point] = attrs.field(factory=list)


@dataclass
class Node:
    value: int
    children: list[Node] = field(default_factory=list)
    color: Color | None = None
    parent: Node | None = None


@dataclass(frozen=True)
class Circle:
    center: Point
    radius: float


@dataclass
class Counted:
    value: int
    seen: int = field(default=0, init=False)


class Row(NamedTuple):
    point: Point
    label: str = "-"


class Options(TypedDict, total=False):
    point: Point
    limit: int


class Model(pydantic.BaseModel):
    color: Color
    limit: int = pydantic.Field(alias="max")
    inner: list[Inner] = []


class Inner(pydantic.BaseModel):
    at: tuple[int, int]


@attrs.frozen
class Box(Generic[T]):
    content: T


@attrs.frozen
class Holder:
    name: str
    conn: Any


@attrs.frozen
class Mixed:
    color: Color
    mode: Literal["a", "b"]
    access: Access
    tags: frozenset[str]
    points: dict[str, tuple[Point, int]]
    either: Point | Circle | int | None
    queue: deque[int]


def make_point() -> Point:
    return Point(1)


def make_nodes() -> list[Node]:
    return [Node(1)]


async def make_point_later() -> Point:
    return Point(1)


class Maker:
    def method(self) -> dict[str, Point]:
        return {}

    def __call__(self) -> Circle:
        return Circle(Point(1), 2.0)
