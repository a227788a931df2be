"""The graph of a workflow: its steps, and the outputs that they pass as arguments.

The graph of a recorded run is derived from its record: an argument whose digest is that of an earlier output, or of an
item of one, comes from that output. The graph of a workflow is derived from a replay without effects: each step returns a
placeholder, which may be passed on to later steps. The replay ends where the workflow itself uses a placeholder's value.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import attrs

from flowckpt.core.dsl import Step, Workflow
from flowckpt.core.dsl.composites import FanOutAction, MapAction, WorkflowAction
from flowckpt.core.identity.values import UNKNOWN, digest_value
from flowckpt.core.records import StepResult
from flowckpt.core.records.result import COMPOSITES
from flowckpt.core.replay import Answer, Command, Crash, Enter, Execute, Finish, Replay, Restore, drive, expand
from flowckpt.core.system.numbers import pluralize
from flowckpt.engine.values.placeholders import NotRun, PlanStopped
from flowckpt.errors import DecodingError
from flowckpt.report.timeline import Lane, LaneState

MOST_NODES = 200
"""A larger graph is not legible: the remaining steps are counted."""
_MOST_INNER = 24
"""How many steps of a group or a child workflow are drawn one by one."""
_MOST_OUTPUTS = 3_000
_MOST_ITEMS = 2_000
_SHORTEST_TEXT = 4
"""Shorter texts are too common to identify their source."""


@attrs.frozen
class Node:
    """A step of the graph.

    Attributes:
        path: the step.
        label: its name within the step that it is nested in.
        kind: the type of the step.
        state: a `LaneState`, a decision of a plan, or empty.
        note: one line about it: the number of its members, or why it would run again.
        outer: the step whose box it is in; empty for none.
        is_box: whether other nodes are drawn inside it.
    """

    path: str
    label: str
    kind: str
    state: str = ""
    note: str = ""
    outer: str = ""
    is_box: bool = False


@attrs.frozen
class Edge:
    """An arrow.

    Attributes:
        source: the earlier step.
        target: the later step.
        label: the parameter that got the output; empty if the arrow only shows the order.
        is_order: whether the arrow only shows the order.
    """

    source: str
    target: str
    label: str = ""
    is_order: bool = False


@attrs.frozen
class Graph:
    """Steps and the arrows between them.

    Attributes:
        name: the workflow.
        nodes: the steps in the order of their yields; a box comes before its inner steps.
        edges: the arrows, each from an earlier step to a later one.
        note: what is not drawn; may be empty.
    """

    name: str
    nodes: Sequence[Node]
    edges: Sequence[Edge]
    note: str = ""


# The graph of a recorded run.


def make_run_graph(name: str, lanes: Sequence[Lane], decisions: Mapping[str, tuple[str, str]] | None = None) -> Graph:
    """Return the graph of a recorded run.

    Args:
        name: the workflow.
        lanes: the steps of the run as a tree.
        decisions: the decision of a plan for each step, and the reason, by path; None if no plan was made.
    """
    left_out = LaneState.LEFT_BEHIND, LaneState.UNDO
    last = {each.path: index for index, each in enumerate(lanes) if each.state not in left_out}
    counting = [each for index, each in enumerate(lanes) if last.get(each.path) == index]
    nodes = [*_select_nodes(counting, decisions or {})]
    nodes += _list_new_nodes(nodes, decisions or {})
    more = max(0, len(nodes) - MOST_NODES)
    nodes = nodes[:MOST_NODES]
    shown = {node.path: node for node in nodes}
    results = {lane.path: lane.result for lane in _order_by_end(counting) if lane.result is not None}
    edges = _find_data_edges(results, shown)
    note = f"{pluralize(more, 'more step')} not drawn" if more else ""
    return Graph(name, nodes, [*edges, *_find_order_edges(nodes, edges)], note)


def _order_by_end(lanes: Sequence[Lane]) -> Iterator[Lane]:
    """Yield the lanes in the order of their ends: each after its nested lanes."""
    open_lanes: list[Lane] = []
    for lane in lanes:
        while open_lanes and open_lanes[-1].depth >= lane.depth:
            yield open_lanes.pop()
        open_lanes.append(lane)
    yield from reversed(open_lanes)


def _select_nodes(lanes: Sequence[Lane], decisions: Mapping[str, tuple[str, str]]) -> Iterator[Node]:
    sizes: dict[str, int] = {}
    for lane in lanes:
        outer = lane.path.rpartition("/")[0]
        sizes[outer] = sizes.get(outer, 0) + 1
    boxes: set[str] = set()
    for lane in lanes:
        outer, _, label = lane.path.rpartition("/")
        if outer and outer not in boxes:
            continue
        inner = sizes.get(lane.path, 0)
        is_box = 0 < inner <= _MOST_INNER and lane.kind != "map"
        if is_box:
            boxes.add(lane.path)
        decision, why = decisions.get(lane.path, ("", ""))
        note = why or (pluralize(inner, "member") if inner and not is_box else "")
        yield Node(lane.path, label, lane.kind, decision or lane.state.value, note, outer, is_box)


def _list_new_nodes(nodes: Sequence[Node], decisions: Mapping[str, tuple[str, str]]) -> Iterator[Node]:
    """Yield the steps of a plan that are not recorded and belong to drawn boxes."""
    boxes = {"", *(node.path for node in nodes if node.is_box)}
    known = {node.path for node in nodes}
    for path, (decision, why) in decisions.items():
        outer, _, label = path.rpartition("/")
        if decision == "new" and path not in known and outer in boxes:
            yield Node(path, label, "", decision, why, outer)


def _find_data_edges(results: Mapping[str, StepResult], shown: Mapping[str, Node]) -> list[Edge]:
    sources: dict[Any, str] = {}  # the recorded form of an output, to the first step that returned it
    parameters: dict[tuple[str, str], dict[str, None]] = {}
    members: dict[str, list[StepResult]] = {}
    left = _MOST_OUTPUTS

    def connect(form: Any, place: str, parameter: str) -> None:
        source = sources.get(form, "")
        if source and source != place and not _is_inside(place, source) and not _is_inside(source, place):
            parameters.setdefault((source, place), {})[parameter.partition("[")[0]] = None

    for path, result in results.items():
        place = find_drawn(path, shown)
        if not place:
            continue
        members.setdefault(path.rpartition("/")[0], []).append(result)
        inner = members.pop(path, [])
        for name, form in result.arguments.items():
            if isinstance(form, str):  # equal numbers are too common to identify a source
                connect(form, place, name)
        if result.step_type == "map" and (firsts := [next(iter(each.arguments.items()), None) for each in inner]):
            connect(tuple(each and each[1] for each in firsts), place, firsts[0][0] if firsts[0] else "")
        if result.success and left > 0:
            left -= 1
            output = [*map(_read_output, inner)] if result.step_type in COMPOSITES else _read_output(result)
            for form in _recorded_forms(output):
                sources.setdefault(form, place)
    return [Edge(source, target, ", ".join(names)) for (source, target), names in parameters.items()]


def find_drawn(path: str, drawn: Container[str]) -> str:
    """Return a step if it is drawn, else the innermost drawn step around it; empty if there is none."""
    while path and path not in drawn:
        path = path.rpartition("/")[0]
    return path


def _is_inside(path: str, outer: str) -> bool:
    return path.startswith(f"{outer}/")


def _read_output(result: StepResult) -> Any:
    try:
        return result.output
    except DecodingError:  # its type is known only to its program
        return None


def _recorded_forms(output: Any) -> Iterator[Any]:
    """Yield the recorded form that an output, and each of its items, has as an argument of a later step.

    The items of a list are also yielded together, because a map over the list has one of them in each member.
    """
    values: list[Any] = []
    if isinstance(output, list | tuple | set | frozenset):
        values = [*islice(output, _MOST_ITEMS)]
    elif isinstance(output, dict):
        values = [*islice(output.values(), _MOST_ITEMS)]
    items = [*map(digest_value, values)]
    if len(items) > 1:
        yield tuple(items)
    for value, form in ((output, digest_value(output)), *zip(values, items, strict=True)):
        is_specific = value not in ([], (), {}, "", b"") and not (
            isinstance(value, str) and len(value) < _SHORTEST_TEXT
        )
        if is_specific and isinstance(form, str) and form != UNKNOWN:
            yield form


def _find_order_edges(nodes: Sequence[Node], edges: Sequence[Edge]) -> Iterator[Edge]:
    """Yield an arrow from the previous step to each step without a data arrow; members of a fan-out have no order."""
    reached = {edge.target for edge in edges}
    previous: dict[str, str] = {}
    for node in nodes:
        is_member = node.label.startswith("[")
        before = previous.get(node.outer, "")
        if before and not is_member and node.path not in reached:
            yield Edge(before, node.path, is_order=True)
        previous[node.outer] = node.path


# The graph of a workflow that has not run.


def make_workflow_graph(workflow: Workflow[..., Any], inputs: Mapping[str, Any]) -> Graph:
    """Return the graph of a workflow up to the point where it needs the output of a step.

    Args:
        workflow: the workflow.
        inputs: its inputs; a missing input without a default is a placeholder, too.

    Raises:
        InputError: an input is unknown.
    """
    outline = _Outline()
    bound = workflow.bind({**{name: NotRun(name) for name in _list_required(workflow)}, **inputs})
    note = outline.drive_to_end(Replay(workflow.make_generator(bound), (), workflow.name, is_muted=True))
    return Graph(workflow.name, outline.nodes, [*outline.edges, *_find_order_edges(outline.nodes, outline.edges)], note)


def _list_required(workflow: Workflow[..., Any]) -> list[str]:
    parameters = workflow.signature.parameters.values()
    return [each.name for each in parameters if each.default is each.empty]


class _Outline:
    """Answers each step of a generator with a placeholder, and notes the steps and the placeholders passed on."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.edges: list[Edge] = []

    def drive_to_end(self, replay: Replay) -> str:
        """Drive a generator; return why its end was not reached, or an empty text."""
        end: Command | None = None
        try:
            drive(replay, self).send(None)
        except StopIteration as stop:
            end = stop.value
        except PlanStopped as stop:
            return _describe_stop(stop)
        finally:
            replay.close()
        if isinstance(end, Crash):
            return (
                _describe_stop(end.error)
                if isinstance(end.error, PlanStopped)
                else f"the workflow raises {end.error!r}"
            )
        return "" if isinstance(end, Finish) else "there are more steps than can be drawn"

    async def restore(self, replay: Replay, command: Restore) -> Answer | None:
        raise AssertionError("there is no record")

    async def execute(self, replay: Replay, command: Execute) -> Answer | None:
        self._add(command.path, command.step)
        return (NotRun(command.path), None) if len(self.nodes) < MOST_NODES else None

    async def enter(self, replay: Replay, command: Enter) -> Answer | None:
        self._add_composite(command)
        return (NotRun(command.path), None) if len(self.nodes) < MOST_NODES else None

    def _add_composite(self, enter: Enter) -> None:
        action = enter.step.action
        if isinstance(action, WorkflowAction):
            self._add(enter.path, enter.step, is_box=True)
            child = Replay(
                action.workflow.make_generator(action.inputs),
                (),
                action.workflow.name,
                prefix=f"{enter.path}/",
                is_muted=True,
            )
            self.drive_to_end(child)
        elif isinstance(action, MapAction):
            is_known = type(action.items) is not NotRun and action.size is not None
            self._add(enter.path, enter.step, note=pluralize(action.size or 0, "member") if is_known else "")
        else:
            assert isinstance(action, FanOutAction)
            self._add(enter.path, enter.step, is_box=True)
            for member in expand(enter):
                if member.step.action.is_composite:
                    self._add_composite(member)
                else:
                    self._add(member.path, member.step)

    def _add(self, path: str, step: Step[Any], *, note: str = "", is_box: bool = False) -> None:
        outer, _, label = path.rpartition("/")
        self.nodes.append(Node(path, label, step.action.step_type, "", note, outer, is_box))
        known = {node.path for node in self.nodes}
        parameters: dict[str, dict[str, None]] = {}
        if not is_box or isinstance(step.action, WorkflowAction):
            for name, value in _list_arguments(step.action):
                for source in _find_placeholders(value):
                    if source in known and source != path:
                        parameters.setdefault(source, {})[name] = None
        self.edges += [Edge(source, path, ", ".join(names)) for source, names in parameters.items()]


def _describe_stop(stop: BaseException) -> str:
    return f"the rest depends on the value of {stop.args[0]!r}"


def _list_arguments(action: Any) -> Iterator[tuple[str, Any]]:
    """Yield the arguments of a step, with the names of its parameters if known."""
    for field in attrs.fields(type(action)):
        value = getattr(action, field.name)
        if field.name == "args":
            names = getattr(getattr(action.function, "__code__", None), "co_varnames", ())
            yield from ((names[index] if index < len(names) else "", each) for index, each in enumerate(value))
        elif field.name in ("kwargs", "inputs", "constants"):
            yield from value.items()
        elif field.name != "function":
            yield field.name, value


def _find_placeholders(value: Any) -> Iterable[str]:
    """Return the steps whose placeholders are in a value."""
    kind = type(value)
    if kind is NotRun:
        return [object.__getattribute__(value, "_path")]
    if kind is dict:
        return [path for each in value.values() for path in _find_placeholders(each)]
    if kind in (list, tuple):
        return [path for each in value for path in _find_placeholders(each)]
    return []
