"""A graph as a picture: Mermaid and DOT as text for other tools, and SVG.

The SVG is drawn in layers (Sugiyama, Tagawa and Toda, 1981): a step is one layer below its lowest predecessor; within a
layer, steps are ordered by the mean position of their predecessors. A box is laid out by itself and then placed as one
large node. An arrow that skips layers passes beside the steps between. So no arrow runs upwards or under a step, and equal
graphs give equal pictures.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterator

import attrs

from flowckpt.report.graph import Edge, Graph, Node, find_drawn

_SHAPES = {  # Mermaid's brackets by the kind of a step
    "map": ("[[", "]]"),
    "wait": ("([", "])"),
    "sleep": ("([", "])"),
    "approval": ("{{", "}}"),
    "command": ("[/", "/]"),
}
_MOST_LABEL = 40
PLANNED = frozenset({"rerun", "new", "in_doubt"})
"""The states of the steps that a resume would run."""
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
"""Control characters, which XML forbids, and marks that reverse the direction of text."""


def escape(text: str) -> str:
    """Return user text escaped for HTML or XML, also for attributes; each control character becomes `\ufffd`."""
    return html.escape(_UNPRINTABLE.sub("\ufffd", text))


def mermaid(graph: Graph) -> str:
    """Return a graph as a Mermaid flowchart."""
    names = {node.path: f"n{index}" for index, node in enumerate(graph.nodes)}
    lines = ["flowchart TD"]
    runs = [names[node.path] for node in graph.nodes if node.state in PLANNED]

    def add(outer: str, indent: str) -> None:
        for node in graph.nodes:
            if node.outer != outer:
                continue
            text = _quote_for_mermaid(_text(node))
            if node.is_box:
                lines.append(f'{indent}subgraph {names[node.path]}["{text}"]')
                add(node.path, f"{indent}  ")
                lines.append(f"{indent}end")
            else:
                left, right = _SHAPES.get(node.kind, ("[", "]"))
                lines.append(f'{indent}{names[node.path]}{left}"{text}"{right}')

    add("", "  ")
    for edge in graph.edges:
        label = f'|"{_quote_for_mermaid(edge.label)}"|' if edge.label else ""
        lines.append(f"  {names[edge.source]} {'-.->' if edge.is_order else '-->'}{label} {names[edge.target]}")
    lines += [f"  style {name} stroke-width:4px" for name in runs]
    if graph.note:
        lines.append(f"  %% {_one_line(graph.note)}")
    return "\n".join(lines) + "\n"


def dot(graph: Graph) -> str:
    """Return a graph in the DOT language of Graphviz."""
    names = {node.path: f"n{index}" for index, node in enumerate(graph.nodes)}
    lines = [f"digraph {_quote_for_dot(graph.name)} {{", '  node [shape=box, style=rounded, fontname="sans-serif"];']

    def add(outer: str, indent: str) -> None:
        for node in graph.nodes:
            if node.outer != outer:
                continue
            if node.is_box:
                lines.append(f"{indent}subgraph cluster_{names[node.path]} {{")
                lines.append(f"{indent}  label={_quote_for_dot(_text(node))};")
                # DOT has no arrows to clusters, so they lead to a small node inside.
                lines.append(f'{indent}  {names[node.path]} [shape=point, label=""];')
                add(node.path, f"{indent}  ")
                lines.append(f"{indent}}}")
            else:
                width = ", penwidth=3" if node.state in PLANNED else ""
                lines.append(f"{indent}{names[node.path]} [label={_quote_for_dot(_text(node))}{width}];")

    add("", "  ")
    for edge in graph.edges:
        style = " [style=dashed]" if edge.is_order else f" [label={_quote_for_dot(edge.label)}]" if edge.label else ""
        lines.append(f"  {names[edge.source]} -> {names[edge.target]}{style};")
    if graph.note:
        lines.append(f"  // {_one_line(graph.note)}")
    return "\n".join([*lines, "}"]) + "\n"


def _text(node: Node) -> str:
    return f"{node.label}: {node.note}" if node.note else node.label


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _quote_for_mermaid(text: str) -> str:
    # Mermaid's entities have a # instead of the &.
    return "".join(each if each.isalnum() or each in " ._-:,()/" else f"#{ord(each)};" for each in _one_line(text))


def _quote_for_dot(text: str) -> str:
    plain = _one_line(text).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{plain}"'


# --- SVG --------------------------------------------------------------------------------------------------------------

_CHARACTER = 7.2  # the width of a character of the font, in pixels
_MOST_BENDS = 8
"""How many arrows may pass beside the steps of a layer; with more, the layer would be too wide."""
_HEIGHT, _PADDING, _GAP_X, _GAP_Y, _HEAD, _MARGIN = 40.0, 14.0, 28.0, 44.0, 26.0, 16.0

STYLE = """
.graph { font: 13px ui-sans-serif, system-ui, sans-serif; }
.graph rect { fill: var(--surface, #fff); stroke: var(--line, #667); stroke-width: 1.5; }
.graph .box > rect { fill: var(--shade, #f4f5f8); stroke-dasharray: 5 4; }
.graph text { fill: var(--ink, #1b1f2a); }
.graph .note { fill: var(--muted, #5b6272); font-size: 11px; }
.graph path { fill: none; stroke: var(--line, #667); stroke-width: 1.5; }
.graph path.order { stroke-dasharray: 2 5; }
.graph .tip { fill: var(--line, #667); stroke: none; }
.graph .state-failed > rect { stroke: var(--failed, #b3261e); stroke-width: 3; }
.graph .state-restored > rect, .graph .state-reuse > rect { stroke: var(--restored, #5b6fa8); }
.graph .state-executed > rect { stroke: var(--executed, #17794a); }
.graph .state-rerun > rect, .graph .state-new > rect { stroke: var(--rerun, #9a5b00); stroke-width: 3; }
.graph .state-in_doubt > rect { stroke: var(--failed, #b3261e); stroke-dasharray: 8 3; stroke-width: 3; }
.graph .state-interrupted > rect, .graph .state-unsaved > rect, .graph .state-waiting > rect { stroke-dasharray: 3 3; stroke-width: 2.5; }
"""


@attrs.define
class _Box:
    """A placed node, with its inner nodes if it is a box; or the place at which arrows from a node pass a layer."""

    node: Node
    width: float = 0.0
    height: float = _HEIGHT
    x: float = 0.0
    y: float = 0.0
    inner: list[_Box] = attrs.field(factory=list)
    is_bend: bool = False

    def move(self, x: float, y: float) -> None:
        self.x += x
        self.y += y
        for each in self.inner:
            each.move(x, y)

    def all(self) -> Iterator[_Box]:
        yield self
        for each in self.inner:
            yield from each.all()


def svg(graph: Graph, *, is_standalone: bool = True) -> str:
    """Return a graph as SVG.

    Args:
        graph: the graph.
        is_standalone: whether to include the style; otherwise the page around it needs `STYLE` in its stylesheet.
    """
    boxes = _lay_out(graph, "")
    width = max((box.x + box.width for box in boxes), default=0.0) + 2 * _MARGIN
    height = max((box.y + box.height for box in boxes), default=0.0) + 2 * _MARGIN
    for box in boxes:
        box.move(_MARGIN, _MARGIN)
    every = [each for box in boxes for each in box.all()]
    placed = {each.node.path: each for each in every if not each.is_bend}
    bends: dict[str, list[_Box]] = {}
    for each in sorted(every, key=lambda each: each.y):
        if each.is_bend:
            bends.setdefault(each.node.path, []).append(each)
    title = escape(f"Graph of {graph.name}: {len(graph.nodes)} steps, {len(graph.edges)} arrows")
    size = f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}"'
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" class="graph" role="img" {size}><title>{title}</title>']
    if is_standalone:
        lines.append(f"<style>{STYLE}</style>")
    lines += [line for each in placed.values() if each.node.is_box for line in _draw_box(each)]
    for edge in graph.edges:
        above, below = _find_level_ends(placed, edge)
        passed = [each for each in bends.get(above.node.path, ()) if above.y < each.y < below.y]
        lines.append(_draw_arrow(placed[edge.source], passed, placed[edge.target], edge))
    lines += [line for each in placed.values() if not each.node.is_box for line in _draw_box(each)]
    return "\n".join([*lines, "</svg>"]) + "\n"


def _find_level_ends(placed: dict[str, _Box], edge: Edge) -> tuple[_Box, _Box]:
    """Return the ends of an arrow, or the boxes around them, that are in the same box."""
    around: dict[str, _Box] = {}
    path = edge.source
    while path:
        around[placed[path].node.outer] = placed[path]
        path = placed[path].node.outer
    path = edge.target
    while placed[path].node.outer not in around:
        path = placed[path].node.outer
    return around[placed[path].node.outer], placed[path]


def _lay_out(graph: Graph, outer: str) -> list[_Box]:
    """Return the nodes of one level with their places, the first at the origin."""
    boxes = {node.path: _Box(node) for node in graph.nodes if node.outer == outer}
    for box in boxes.values():
        width = max(len(_shorten(box.node.label)), 0.85 * len(_shorten(box.node.note))) * _CHARACTER + 2 * _PADDING
        if box.node.is_box:
            box.inner = _lay_out(graph, box.node.path)
            inner_width = max((each.x + each.width for each in box.inner), default=0.0)
            inner_height = max((each.y + each.height for each in box.inner), default=0.0)
            for each in box.inner:
                each.move(_PADDING, _HEAD)
            width, box.height = max(width, inner_width + 2 * _PADDING), inner_height + _HEAD + _PADDING
        box.width = max(width, 72.0)
    if not boxes:
        return []
    arrows = _find_level_arrows(graph, boxes)
    layers = _split_layers(boxes, arrows)
    arrows = _bend_arrows(boxes, layers, arrows)
    _order_layers(layers, arrows)
    widths = [sum(boxes[path].width + _GAP_X for path in layer) - _GAP_X for layer in layers]
    y = 0.0
    for layer, width in zip(layers, widths, strict=True):
        x = (max(widths) - width) / 2
        for path in layer:
            boxes[path].move(x, y)
            x += boxes[path].width + _GAP_X
        height = max(boxes[path].height for path in layer)
        for path in layer:
            if boxes[path].is_bend:
                boxes[path].height = height
        y += height + _GAP_Y
    return list(boxes.values())


def _find_level_arrows(graph: Graph, boxes: dict[str, _Box]) -> set[tuple[str, str]]:
    """Return the arrows between the nodes of one level; an arrow from or to the inside of a box counts for the box."""
    arrows = {(find_drawn(edge.source, boxes), find_drawn(edge.target, boxes)) for edge in graph.edges}
    order = {path: index for index, path in enumerate(boxes)}
    return {(a, b) for a, b in arrows if a and b and order[a] < order[b]}


def _split_layers(boxes: dict[str, _Box], arrows: set[tuple[str, str]]) -> list[list[str]]:
    if not arrows and len(boxes) > 1:  # members of a group: a block rather than one long row
        paths, columns = [*boxes], math.ceil(math.sqrt(len(boxes)))
        return [paths[start : start + columns] for start in range(0, len(paths), columns)]
    depth: dict[str, int] = {}
    for path in boxes:  # in the order of the yields, so the depth of each predecessor is known
        depth[path] = max((depth[source] + 1 for source, target in arrows if target == path), default=0)
    layers: list[list[str]] = [[] for _ in range(max(depth.values()) + 1)]
    for path, layer in depth.items():
        layers[layer].append(path)
    return layers


def _bend_arrows(boxes: dict[str, _Box], layers: list[list[str]], arrows: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Add a place to each layer that arrows of a node pass; return arrows that only connect adjacent layers."""
    depth = {path: index for index, layer in enumerate(layers) for path in layer}
    bends, bent = [0] * len(layers), set[tuple[str, str]]()
    for source, target in sorted(arrows, key=lambda arrow: (depth[arrow[0]], depth[arrow[1]], arrow)):
        before = source
        for index in range(depth[source] + 1, depth[target]):
            path = f"{source}\0{index}"
            if path not in boxes:
                if bends[index] == _MOST_BENDS:
                    continue
                bends[index] += 1
                boxes[path] = _Box(attrs.evolve(boxes[source].node, is_box=False), height=0.0, is_bend=True)
                layers[index].append(path)
            bent.add((before, path))
            before = path
        bent.add((before, target))
    return bent


def _order_layers(layers: list[list[str]], arrows: set[tuple[str, str]]) -> None:
    place: dict[str, float] = {}
    for layer in layers:

        def mean(path: str) -> float:
            before = [place[source] for source, target in arrows if target == path and source in place]
            return sum(before) / len(before) if before else 0.0

        layer.sort(key=mean)
        place.update({path: (index + 0.5) / len(layer) for index, path in enumerate(layer)})


def _shorten(text: str) -> str:
    return text if len(text) <= _MOST_LABEL else f"{text[: _MOST_LABEL - 1]}…"


def _draw_box(box: _Box) -> Iterator[str]:
    node = box.node
    classes = " ".join(
        ["box" if node.is_box else "node", *([f"state-{node.state.replace(' ', '-')}"] if node.state else [])]
    )
    middle = box.x + box.width / 2
    yield f'<g class="{escape(classes)}" data-path="{escape(node.path)}">'
    yield f"<title>{escape(', '.join(filter(None, (node.path, node.kind, node.state, node.note))))}</title>"
    radius = 20 if node.kind in ("wait", "sleep", "approval") else 5
    place = f'x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}"'
    if node.kind == "map":  # a second sheet behind the first: many of one kind
        yield f'<rect x="{box.x + 4:.1f}" y="{box.y + 4:.1f}" width="{box.width:.1f}" height="{box.height:.1f}" rx="5"/>'
    yield f'<rect {place} rx="{radius}"/>'
    if node.is_box:
        yield f'<text x="{box.x + 10:.1f}" y="{box.y + 17:.1f}">{escape(_shorten(node.label))}</text>'
    else:
        y = box.y + (17 if node.note else 25)
        yield f'<text x="{middle:.1f}" y="{y:.1f}" text-anchor="middle">{escape(_shorten(node.label))}</text>'
        if node.note:
            note = escape(_shorten(node.note))
            yield f'<text class="note" x="{middle:.1f}" y="{box.y + 32:.1f}" text-anchor="middle">{note}</text>'
    yield "</g>"


def _draw_arrow(source: _Box, bends: list[_Box], target: _Box, edge: Edge) -> str:
    x1, y1 = source.x + source.width / 2, source.y + source.height
    x2, y2 = target.x + target.width / 2, target.y
    way = f"M{x1:.1f},{y1:.1f} "
    for each in bends:
        way += f"{_draw_curve(x1, y1, each.x, each.y)} V{each.y + each.height:.1f} "
        x1, y1 = each.x, each.y + each.height
    label = ""
    if edge.label:
        at = f'x="{(x1 + x2) / 2 + 5:.1f}" y="{(y1 + y2) / 2:.1f}"'
        label = f'<title>{escape(edge.label)}</title><text class="note" {at}>{escape(_shorten(edge.label))}</text>'
    kind = ' class="order"' if edge.is_order else ""
    return (
        f'<g>{label}<path{kind} d="{way}{_draw_curve(x1, y1, x2, y2 - 6)}"/>'
        f'<path class="tip" d="M{x2 - 4:.1f},{y2 - 8:.1f} h8 l-4,8 z"/></g>'
    )


def _draw_curve(x1: float, y1: float, x2: float, y2: float) -> str:
    bend = max(18.0, (y2 - y1) / 2)
    return f"C{x1:.1f},{y1 + bend:.1f} {x2:.1f},{y2 - bend:.1f} {x2:.1f},{y2:.1f}"
