"""`flowckpt graph` shows which output went into which argument: of a run by its record, of a workflow without running it."""

from __future__ import annotations

import re
from itertools import pairwise
from xml.etree import ElementTree as ET

from flowckpt.report.drawing import svg
from flowckpt.report.graph import Edge, Graph, Node


def arrows(text):
    """Return the arrows of a Mermaid graph by the labels of its nodes."""
    names, found = {}, set()
    for line in text.splitlines():
        head = line.strip().removeprefix("subgraph ").split(" ")[0]
        if '"' in line and "--" not in line and "-." not in line:
            name = head.partition("[")[0].partition("{")[0].partition("(")[0]
            names[name] = line.split('"')[1].replace("#91;", "[").replace("#93;", "]").partition(":")[0]
        elif "-->" in line or "-.->" in line:
            source, _, rest = line.strip().partition(" ")
            kind, target = rest.rsplit(" ", 1)
            found.add(
                (names[source], names[target], "order" if "-." in kind else kind.split('"')[1] if '"' in kind else "")
            )
    return found


def test_the_arrows_of_a_run_follow_its_data(etl):
    found = arrows(etl("graph", "one").expect(0).out)
    assert found == {
        ("fetch", "parse", "page"),
        ("parse", "publish", "pages"),
        ("parse", "[left]", "obj"),
        ("parse", "load", "pages"),
        ("publish", "parallel", "order"),
    }


def test_the_graph_of_a_workflow_runs_no_step(etl):
    before = sorted(etl.directory.iterdir())
    (etl.directory / "straight.py").write_text(
        """
from pathlib import Path
from flowckpt import step, workflow

def touch(path):
    Path("ran").touch()

@workflow("straight")
def main(source: str):
    rows = yield step("fetch").python(touch, source)
    clean = yield step("clean").map(touch, rows)
    found = yield step("index").python(touch, {"rows": [clean], "n": 3})
    yield step("make").command(["make", "report"])
    return found
"""
    )
    ran = etl("graph", "straight.py:main").expect(0)
    assert arrows(ran.out) == {("fetch", "clean", "items"), ("clean", "index", "path"), ("index", "make", "order")}
    assert ran.err == "" and not (etl.directory / "ran").exists()
    assert {each.name for each in etl.directory.iterdir()} - {each.name for each in before} <= {
        "straight.py",
        "__pycache__",
    }


def test_the_graph_of_a_workflow_ends_where_it_looks_at_an_output(etl):
    (etl.directory / "looks.py").write_text(
        """
from flowckpt import step, workflow

@workflow
def looks(n: int):
    rows = yield step("fetch").python(range, n)
    if len(rows) > 3:
        yield step("many").python(abs, 1)
"""
    )
    ran = etl("graph", "looks.py").expect(0)
    assert '"fetch"' in ran.out and '"many"' not in ran.out
    assert ran.err == "flowckpt: the rest depends on the value of 'fetch'\n"


def test_a_child_workflow_is_a_box(etl):
    (etl.directory / "nested.py").write_text(
        """
from flowckpt import step, workflow

@workflow
def fit(rows: list):
    model = yield step("train").python(sum, rows)
    yield step("test").python(abs, model)

@workflow
def whole():
    rows = yield step("fetch").python(list, [1, 2, 3])
    yield step("fit").workflow(fit, rows=rows)
"""
    )
    for graph in (etl("graph", "nested.py:whole").expect(0).out,):
        assert 'subgraph n1["fit"]' in graph
        assert ("train", "test", "x") in arrows(graph) or ("train", "test", "") in arrows(graph)
    etl("run", "nested.py:whole", "--id", "nested").expect(0)
    assert 'subgraph n1["fit"]' in etl("graph", "nested").expect(0).out


def test_a_name_that_is_neither_is_an_error_that_says_so(etl):
    failed = etl("graph", "nothing")
    assert failed.code == 12 and "nothing" in failed.err
    assert etl("graph", "nothing.py").code == 2


def test_inputs_reach_a_workflow_and_are_refused_for_a_run(etl):
    assert "omit -i" in etl("graph", "one", "-i", "limit=3").expect(2).err
    assert "limit" in etl("graph", "pipeline", "-i", "limit=many").expect(2).err


def test_no_arrow_passes_behind_a_step():
    names = [f"s{number}" for number in range(9)]
    nodes = [Node(name, name, "python", outer="") for name in names]
    nodes += [Node("s8/in", "in", "python", outer="s8")]
    nodes[8] = Node("s8", "s8", "workflow", is_box=True)
    edges = [Edge(one, other, is_order=True) for one, other in pairwise(names)]
    edges += [Edge(names[0], names[2]), Edge(names[0], names[7]), Edge(names[1], names[4]), Edge(names[2], "s8/in")]
    picture = ET.fromstring(svg(Graph("long", nodes, edges)))
    rectangles = {}
    for group in picture.iter(f"{SVG}g"):
        rectangle = group.find(f"{SVG}rect")
        if rectangle is not None and group.get("class") == "node":
            rectangles[group.get("data-path")] = [float(rectangle.get(name)) for name in ("x", "y", "width", "height")]
    arrows = [path.get("d") for path in picture.iter(f"{SVG}path") if path.get("class") != "tip"]
    assert len(arrows) == len(edges)
    for edge, drawn in zip(edges, arrows, strict=True):
        met = {name for point in points(drawn) for name, place in rectangles.items() if is_in(point, place)}
        assert met <= {edge.source, edge.target}, edge


SVG = "{http://www.w3.org/2000/svg}"


def points(drawn):
    """Yield points of a path of curves and vertical lines."""
    numbers = iter(re.findall(r"[MCV]|-?[0-9.]+", drawn))
    x = y = 0.0
    for command in numbers:
        if command == "M":
            x, y = float(next(numbers)), float(next(numbers))
        elif command == "V":
            end = float(next(numbers))
            yield from ((x, y + (end - y) * part / 20) for part in range(21))
            y = end
        else:
            xs, ys = zip((x, y), *((float(next(numbers)), float(next(numbers))) for _ in range(3)), strict=True)
            for part in range(21):
                t = part / 20
                weights = (1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3
                yield tuple(sum(w * each for w, each in zip(weights, values, strict=True)) for values in (xs, ys))
            x, y = xs[-1], ys[-1]


def is_in(point, place):
    (x, y), (left, top, width, height) = point, place
    return left < x < left + width and top < y < top + height
