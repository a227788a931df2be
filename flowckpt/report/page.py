"""The report as one HTML file that opens from disk, offline, and asks no host for anything.

Everything that comes from a run is escaped, and reaches the scripts as a block of data that a browser does not execute. A
content policy allows the stylesheet and the scripts of this file by their digests and forbids everything else.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from functools import cache
from importlib import resources
from typing import Any

from flowckpt._version import __version__
from flowckpt.core.codec.results import plain_tree
from flowckpt.core.records.wait import shown_moment
from flowckpt.report.document import RunReport, duration_in_words, error_text, lane_result_text, shown_value
from flowckpt.report.drawing import STYLE, escape, svg

SCRIPTS = ("rows.js", "waterfall.js", "report.js")
_MOST_PLAIN = 200
"""How many steps the table shows where a browser runs no scripts."""


def page(report: RunReport) -> str:
    """Return the HTML of a report."""
    style = stylesheet()
    scripts = [static(name) for name in SCRIPTS]
    allowed = " ".join(f"'{digest_of(script)}'" for script in scripts)
    policy = (
        f"default-src 'none'; style-src '{digest_of(style)}'; script-src {allowed}; base-uri 'none'; form-action 'none'"
    )
    title = f"{report.latest.workflow_name} · {report.workflow_id}"
    parts = [
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="referrer" content="no-referrer">',
        f"<title>{escape(title)}</title>\n<style>{style}</style>\n</head>\n<body>",
        f"<main>{body_of(report)}</main>",
        f"<footer>Made by flowckpt {__version__} at {shown_moment(report.made_at)}.</footer>",
        *(f"<script>{script}</script>" for script in scripts),
        "</body>\n</html>\n",
    ]
    return "\n".join(parts)


def body_of(report: RunReport) -> str:
    """Return the parts of a report, with the data that its scripts draw, for a page of any kind."""
    parts = [
        *_header(report),
        *_waterfall(report),
        *_graph(report),
        *_steps(report),
        *_comparison(report),
        f'<script type="application/json" id="run-data">{json_for_script(report.data())}</script>',
    ]
    return "\n".join(parts)


@cache
def static(name: str) -> str:
    """Return a stylesheet or script of this package."""
    return resources.files("flowckpt.report").joinpath("static", name).read_text(encoding="utf-8")


def stylesheet() -> str:
    """Return the stylesheet of all pages."""
    return f"{static('report.css')}\n{STYLE}"


def digest_of(text: str) -> str:
    """Return the digest by which a content policy allows an inline stylesheet or script."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def json_for_script(value: Any) -> str:
    """Return JSON that can stand inside a `<script>` element: nothing in it can end the element."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    text = text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
    return text.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029").encode("utf-8", "replace").decode()


def _header(report: RunReport) -> Iterator[str]:
    latest, status = report.latest, report.status.value
    yield f'<header class="run"><h1>{escape(latest.workflow_name)} <code>{escape(report.workflow_id)}</code>'
    yield f'<span class="status status-{status}">{status}</span></h1>'
    yield f'<p class="sentence">{escape(report.sentence)}</p>'
    if report.plan_note:
        yield f'<p class="plan">{escape(report.plan_note)}</p>'
    if latest.error is not None:
        yield f'<p class="error">{escape(error_text(latest.error))}</p>'
        if latest.error.traceback:
            yield f'<details><summary>Traceback</summary><pre tabindex="0">{escape(latest.error.traceback)}</pre></details>'
    yield f"<details><summary>Inputs, output and tags</summary>{_facts(report)}</details></header>"


def _facts(report: RunReport) -> str:
    latest = report.latest
    tree = plain_tree(latest.held_inputs, "inputs")
    inputs: Mapping[str, Any] = tree if isinstance(tree, Mapping) else {}
    rows = [(f"input {name}", shown_value(value)) for name, value in inputs.items()]
    if latest.status.value == "completed":
        rows.append(("output", shown_value(latest.held_output)))
    rows += [(f"tag {name}", str(value)) for name, value in latest.metadata.get("tags", {}).items()]
    rows += [("started", _moment(report.timeline.attempts[0].started_at))] if report.timeline.attempts else []
    rows.append(("last saved", _moment(latest.saved_at)))
    return (
        f"<dl>{''.join(f'<dt>{escape(name)}</dt><dd><code>{escape(value)}</code></dd>' for name, value in rows)}</dl>"
    )


def _moment(moment: datetime) -> str:
    return shown_moment(moment)


def _waterfall(report: RunReport) -> Iterator[str]:
    yield '<section aria-labelledby="waterfall-title"><h2 id="waterfall-title">Waterfall</h2>'
    yield '<div id="waterfall" class="waterfall"></div>'
    yield '<aside id="detail" class="detail" aria-live="polite" hidden></aside>'
    rows = [
        [
            str(span.number),
            shown_moment(span.started_at),
            duration_in_words(span.duration.total_seconds()),
            span.outcome.value,
            span.last_path,
        ]
        for span in report.timeline.attempts
    ]
    yield "<details><summary>Attempts as a table</summary>"
    yield _table(("Attempt", "Started", "Duration", "Ended", "Last step"), rows)
    yield "</details></section>"


def _graph(report: RunReport) -> Iterator[str]:
    if not report.graph.nodes:
        return
    yield '<section aria-labelledby="graph-title"><h2 id="graph-title">Graph</h2>'
    yield (
        "<p>A solid arrow shows an output that went into an argument; a dotted arrow shows only the order. Thick borders "
        "mark steps that failed, or that a resume would run.</p>"
    )
    yield f'<div class="graph-frame" id="graph" tabindex="0" role="group" aria-label="Graph of the steps">{svg(report.graph, is_standalone=False)}</div>'
    reasons = [[node.path, node.state.replace("_", " "), node.note] for node in report.graph.nodes if node.note]
    if report.graph.note:
        yield f"<p>{escape(report.graph.note)}.</p>"
    if reasons:
        yield "<details><summary>Notes on the steps</summary>"
        yield f"{_table(('Step', 'State', 'Note'), reasons)}</details>"
    yield "</section>"


def _steps(report: RunReport) -> Iterator[str]:
    lanes = report.timeline.lanes
    yield '<section aria-labelledby="steps-title"><h2 id="steps-title">Steps</h2><div id="steps"></div>'
    rows = [
        [
            each.path,
            each.kind,
            lane_result_text(each),
            duration_in_words(each.duration_ms / 1000),
            shown_moment(each.started_at) if each.started_at else "",
            str(each.attempt or ""),
        ]
        for each in lanes[:_MOST_PLAIN]
    ]
    yield f"<noscript>{_table(('Step', 'Type', 'Result', 'Time', 'Started', 'Attempt'), rows)}"
    if len(lanes) > _MOST_PLAIN:
        yield f"<p>{len(lanes) - _MOST_PLAIN:,} more steps; a browser with JavaScript shows them.</p>"
    yield "</noscript></section>"


def _comparison(report: RunReport) -> Iterator[str]:
    found = report.comparison
    yield '<section aria-labelledby="comparison-title"><h2 id="comparison-title">Compared with earlier runs</h2>'
    if not found.runs:
        yield "<p>The store has no other completed run of this workflow.</p></section>"
        return
    names = ", ".join(f"<code>{escape(run)}</code>" for run in found.runs)
    yield f"<p>Completed runs of the same workflow: {names}.</p>"
    if found.slower:
        rows = [
            [
                each.path,
                duration_in_words(each.duration_ms / 1000),
                duration_in_words(each.usual_ms / 1000),
                str(each.runs),
            ]
            for each in found.slower
        ]
        yield f"<h3>Slower</h3>{_table(('Step', 'This run', 'Median', 'Runs'), rows)}"
    else:
        yield "<p>No step became slower.</p>"
    if found.changes:
        items = "".join(f"<li>{escape(change)}</li>" for change in found.changes)
        yield f"<h3>Changed since the newest of them</h3><ul>{items}</ul>"
    else:
        yield "<p>Code, inputs and steps are the same as in the newest of them.</p>"
    yield "</section>"


def _table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in header)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="table-frame"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
