"""The report as one HTML file that opens from disk and makes no requests.

All text from a run is escaped, and passed to the scripts as a block of data that a browser does not execute. A content
security policy allows the stylesheet and the scripts of this file by their digests and forbids everything else.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import resources
from typing import Any

from flowckpt._version import __version__
from flowckpt.core.codec.blob import plain_tree
from flowckpt.core.records.generation import number_of
from flowckpt.core.records.result import sum_figures
from flowckpt.core.records.wait import format_moment
from flowckpt.core.system.numbers import number_text
from flowckpt.engine.run.live import collect_published
from flowckpt.engine.run.resumption import PACKAGES
from flowckpt.report.document import (
    RunReport,
    duration_in_words,
    error_text,
    format_value,
    lane_result_text,
)
from flowckpt.report.drawing import PLANNED, STYLE, escape, svg

SCRIPTS = ("rows.js", "waterfall.js", "report.js")
WATERFALL = """<div id="waterfall" class="waterfall"></div>
<aside id="detail" class="detail" aria-live="polite" hidden></aside>"""
"""The elements in which the scripts draw the waterfall and the details of a step."""
_MOST_ERROR = 200
"""How many characters of an error the header shows unfolded."""
_MOST_PLAIN = 200
"""How many steps the table shows in a browser without scripts."""


def render_page(report: RunReport) -> str:
    """Return the HTML of a report."""
    title = f"{report.latest.workflow_name} · {report.workflow_id}"
    made = f"Made by flowckpt {__version__} at {format_moment(report.made_at)}."
    return render_document(title, f"<main>{render_body(report)}</main>\n<footer>{made}</footer>")


def render_document(title: str, body: str) -> str:
    """Return a whole HTML document that contains its stylesheet and scripts, and may load nothing.

    Args:
        title: its title, as text.
        body: its content, as markup, with the data for the scripts.
    """
    style = read_stylesheet()
    scripts = [read_static(name) for name in SCRIPTS]
    allowed = " ".join(f"'{compute_digest(script)}'" for script in scripts)
    policy = f"default-src 'none'; style-src '{compute_digest(style)}'; script-src {allowed}; base-uri 'none'; form-action 'none'"
    parts = [
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="referrer" content="no-referrer">',
        f"<title>{escape(title)}</title>\n<style>{style}</style>\n</head>\n<body>",
        body,
        *(f"<script>{script}</script>" for script in scripts),
        "</body>\n</html>\n",
    ]
    return "\n".join(parts)


def render_body(report: RunReport) -> str:
    """Return the parts of a report, with the data for its scripts, for a page of any kind."""
    parts = [
        *_render_header(report),
        *_render_waterfall(report),
        *_render_graph(report),
        *_render_steps_section(report),
        *_render_comparison(report),
        render_data(report.data()),
    ]
    return "\n".join(parts)


def render_data(data: Mapping[str, Any]) -> str:
    """Return the element with the data for the scripts."""
    return f'<script type="application/json" id="run-data">{encode_for_script(data)}</script>'


@cache
def read_static(name: str, package: str = "flowckpt.report") -> str:
    """Return a stylesheet or script of a package."""
    return resources.files(package).joinpath("static", name).read_text(encoding="utf-8")


def read_stylesheet() -> str:
    """Return the stylesheet of all pages."""
    return f"{read_static('report.css')}\n{STYLE}"


def compute_digest(text: str) -> str:
    """Return the digest by which a content security policy allows an inline stylesheet or script."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def encode_for_script(value: Any) -> str:
    """Return JSON for the inside of a `<script>` element: nothing in it can end the element."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    text = text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
    return text.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029").encode("utf-8", "replace").decode()


def _render_header(report: RunReport) -> Iterator[str]:
    latest, status = report.latest, report.status.value
    yield f'<header class="run"><h1>{escape(latest.workflow_name)} <code>{escape(report.workflow_id)}</code>'
    yield f'<span class="status status-{status}">{status}</span></h1>'
    yield f'<p class="sentence">{escape(report.sentence)}</p>'
    if report.plan_note:
        yield f'<p class="plan">{escape(report.plan_note)}</p>'
    if latest.error is not None:
        yield _render_error(error_text(latest.error))
        if latest.error.traceback:
            yield f'<details><summary>Traceback</summary><pre tabindex="0">{escape(latest.error.traceback)}</pre></details>'
    yield f"<details><summary>Inputs, output, tags and published values</summary>{_render_facts(report)}</details></header>"


def _render_error(text: str) -> str:
    """Return an error, folded if it is long."""
    first = text.split("\n", 1)[0][:_MOST_ERROR]
    if len(text) <= len(first):
        return f'<p class="error">{escape(text)}</p>'
    return f'<details class="error"><summary>{escape(first)}…</summary><pre tabindex="0">{escape(text)}</pre></details>'


def _render_facts(report: RunReport) -> str:
    latest = report.latest
    tree = plain_tree(latest.held_inputs, "inputs")
    inputs: Mapping[str, Any] = tree if isinstance(tree, Mapping) else {}
    rows = [(f"input {name}", format_value(value)) for name, value in inputs.items()]
    if latest.status.value == "completed":
        rows.append(("output", format_value(latest.held_output)))
    rows += [("generation", str(number))] if (number := number_of(latest.metadata)) > 1 else []
    rows += [(f"tag {name}", str(value)) for name, value in latest.metadata.get("tags", {}).items()]
    totals = sum_figures(latest.step_results)
    rows += [(f"figure {name}", number_text(value)) for name, value in totals.items()]
    published = collect_published(latest.step_results, report.live)
    rows += [(f"published {name}", format_value(each.value)) for name, each in published.items()]
    rows += [
        (f"packages of attempt {attempt}", ", ".join(f"{name} {version}" for name, version in versions.items()))
        for attempt, versions in latest.metadata.get(PACKAGES, {}).items()
    ]
    rows += [("started", format_moment(report.timeline.attempts[0].started_at))] if report.timeline.attempts else []
    rows.append(("last saved", format_moment(latest.saved_at)))
    return (
        f"<dl>{''.join(f'<dt>{escape(name)}</dt><dd><code>{escape(value)}</code></dd>' for name, value in rows)}</dl>"
    )


def _render_waterfall(report: RunReport) -> Iterator[str]:
    yield '<section aria-labelledby="waterfall-title"><h2 id="waterfall-title">Waterfall</h2>'
    yield WATERFALL
    yield "<noscript><p>The waterfall is drawn with JavaScript. The tables show the same times.</p></noscript>"
    yield render_attempts(report)
    yield "</section>"


def render_attempts(report: RunReport) -> str:
    """Return the attempts of a run as a folded table."""
    rows = [
        [
            str(span.number),
            format_moment(span.started_at),
            duration_in_words(span.duration.total_seconds()),
            span.outcome.value,
            span.last_path,
        ]
        for span in report.timeline.attempts
    ]
    header = ("Attempt", "Started", "Duration", "Ended", "Last step")
    return f"<details><summary>Attempts as a table</summary>{render_table(header, rows)}</details>"


def _render_graph(report: RunReport) -> Iterator[str]:
    if not report.graph.nodes:
        return
    yield '<section aria-labelledby="graph-title"><h2 id="graph-title">Graph</h2>'
    yield (
        "<p>A solid arrow shows an output that was passed as an argument; a dotted arrow shows only the order. Thick borders "
        "mark steps that failed, or that a resume would run.</p>"
    )
    yield f'<div class="graph-frame" id="graph" tabindex="0" role="group" aria-label="Graph of the steps">{svg(report.graph, is_standalone=False)}</div>'
    if report.graph.note:
        yield f"<p>{escape(report.graph.note)}.</p>"
    planned = [node for node in report.graph.nodes if node.state in PLANNED]
    if planned:
        rows = [[node.path, node.state.replace("_", " "), node.note] for node in planned]
        yield f"<h3>Steps that a resume would run</h3>{render_table(('Step', 'Decision', 'Reason'), rows)}"
    yield "</section>"


def _render_steps_section(report: RunReport) -> Iterator[str]:
    yield '<section aria-labelledby="steps-title"><h2 id="steps-title">Steps</h2><div id="steps"></div>'
    yield f"<noscript>{render_steps(report)}</noscript></section>"


def render_steps(report: RunReport) -> str:
    """Return the first steps of a run as a plain table."""
    lanes = report.timeline.lanes
    rows = [
        [
            each.path,
            each.kind,
            lane_result_text(each),
            duration_in_words(each.duration_ms / 1000),
            format_moment(each.started_at) if each.started_at else "",
            str(each.attempt or ""),
        ]
        for each in lanes[:_MOST_PLAIN]
    ]
    rendered = render_table(("Step", "Type", "Result", "Time", "Started", "Attempt"), rows)
    left_out = len(lanes) - _MOST_PLAIN
    return f"{rendered}<p>{left_out:,} more steps; a page with JavaScript shows them.</p>" if left_out > 0 else rendered


def _render_comparison(report: RunReport) -> Iterator[str]:
    comparison = report.comparison
    yield '<section aria-labelledby="comparison-title"><h2 id="comparison-title">Compared with earlier runs</h2>'
    if not comparison.runs:
        yield "<p>The store has no other completed run of this workflow.</p></section>"
        return
    names = ", ".join(f"<code>{escape(run)}</code>" for run in comparison.runs)
    yield f"<p>Completed runs of the same workflow: {names}.</p>"
    if comparison.slower:
        rows = [
            [
                each.path,
                duration_in_words(each.duration_ms / 1000),
                duration_in_words(each.usual_ms / 1000),
                str(each.runs),
            ]
            for each in comparison.slower
        ]
        yield f"<h3>Slower</h3>{render_table(('Step', 'This run', 'Median', 'Runs'), rows)}"
    else:
        yield "<p>No step became slower.</p>"
    if comparison.figures:
        rows = [
            [each.name, number_text(each.total), "" if each.usual is None else number_text(each.usual)]
            for each in comparison.figures
        ]
        yield f"<h3>Figures</h3>{render_table(('Figure', 'This run', 'Median'), rows)}"
    if comparison.changes:
        items = "".join(f"<li>{escape(change)}</li>" for change in comparison.changes)
        yield f"<h3>Changed since the newest of them</h3><ul>{items}</ul>"
    else:
        yield "<p>Code, inputs and steps are the same as in the newest of them.</p>"
    yield "</section>"


def render_table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table of texts; without a header, the first cell of each row is its header."""
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in header)
    first = "td" if head else 'th scope="row"'
    body = "".join(
        f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag[:2]}>' for tag, cell in zip((first, *['td'] * 20), row, strict=False))}</tr>"
        for row in rows
    )
    top = f"<thead><tr>{head}</tr></thead>" if head else ""
    return f'<div class="table-frame"><table>{top}<tbody>{body}</tbody></table></div>'
