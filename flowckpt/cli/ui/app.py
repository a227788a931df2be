"""The pages and the JSON API, as a Starlette application.

A page reads the store like the commands, and shows the documents that they print. The JSON API is their `--json`.
"""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode

import attrs
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from flowckpt._version import __version__
from flowckpt.cli.commands.report import make_run_report
from flowckpt.cli.options import split_pair
from flowckpt.cli.render.documents import listed_document, run_document
from flowckpt.cli.render.tables import ago_text
from flowckpt.cli.runs import read_survey, run_async
from flowckpt.cli.stored_run import StoredRun, read_live_notes, read_stored_run
from flowckpt.cli.ui.actions import RUN_ACTIONS, SHORT_SECONDS, STORE_ACTIONS, Action, Commands
from flowckpt.cli.ui.security import HEADERS, SAFE_METHODS, Guard, Request, content_policy
from flowckpt.core.records import Status
from flowckpt.core.records.listing import RunFilter, RunInfo
from flowckpt.core.records.wait import Wait, WaitKind, format_moment, waits_in
from flowckpt.core.system.ids import new_message_id
from flowckpt.engine.values import waits
from flowckpt.errors import CheckpointNotFoundError, FlowckptError, SettingError
from flowckpt.report.comparison import Comparison, read_comparison
from flowckpt.report.document import RunReport, format_value, plan_sentence, planned_steps
from flowckpt.report.drawing import svg
from flowckpt.report.page import SCRIPTS, read_static, read_stylesheet, render_body
from flowckpt.stores.base import StoreBase

_PAGE_SIZE = 50
_INBOX_PAGE, _INBOX_PAGES = 500, 10
"""How many runs the inbox reads at once, and how often at most, to fill a page with waits for people."""
_MOST_BODY = 1_000_000
_LIVE = (Status.RUNNING, Status.SUSPENDED, Status.CRASHED)


@attrs.define
class Ui:
    """The pages of one store.

    Attributes:
        store: the store.
        shown_store: its name, as shown to the user.
        guard: admits requests.
        commands: starts the commands of actions.
        is_read_only: whether there are no actions.
    """

    store: StoreBase
    shown_store: str
    guard: Guard
    commands: Commands
    is_read_only: bool
    templates: Environment = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.templates = Environment(
            loader=PackageLoader("flowckpt.cli.ui"),
            autoescape=select_autoescape(default=True),
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self.templates.filters |= {"ago": ago_text, "moment": format_moment, "segment": encode_segment}

    def app(self) -> ASGIApp:
        """Return the application, wrapped in its guard."""
        routes = [
            Route("/", self.runs),
            Route("/inbox", self.inbox),
            Route("/store", self.store_page),
            Route("/static/{name}", self.static_file),
            Route("/api/openapi.json", self.openapi),
            Route("/api/runs", self.api_runs),
            Route("/api/runs/{run}", self.api_run),
            Route("/api/runs/{run}/data", self.api_data),
            Route("/api/store", self.api_store),
            Route("/runs/{run}", self.run),
        ]
        if not self.is_read_only:
            routes += [
                Route("/jobs/{number:int}", self.job),
                Route("/store/{action}", self.action_form, methods=["GET"]),
                Route("/store/{action}", self.act, methods=["POST"]),
                Route("/runs/{run}/{action}", self.action_form, methods=["GET"]),
                Route("/runs/{run}/{action}", self.act, methods=["POST"]),
                Route("/api/runs/{run}/plan", self.api_plan),
                Route("/api/runs/{run}/{action}", self.api_act, methods=["POST"]),
                Route("/api/store/{action}", self.api_act, methods=["POST"]),
            ]
        handlers: Mapping[Any, Any] = {404: _not_found, FlowckptError: self.show_error}
        return GuardedApp(Starlette(routes=routes, exception_handlers=handlers), self.guard)

    # --- pages ---

    def runs(self, request: HttpRequest) -> Response:
        """Return a page of the list of runs."""
        query = request.query_params
        chosen = {name: query.get(name, "").strip() for name in ("q", "workflow", "status", "tag")}
        if chosen["status"] not in {*map(str, Status)}:
            chosen["status"] = ""
        run_filter = _make_filter(
            _PAGE_SIZE + 1,
            query.get("before", ""),
            [chosen["status"]] if chosen["status"] else [],
            chosen["workflow"],
            [chosen["tag"]] if chosen["tag"] else [],
            chosen["q"],
        )
        survey = read_survey(self.store, run_filter)
        runs = survey.runs[:_PAGE_SIZE]
        filters = {name: value for name, value in chosen.items() if value}
        is_more = len(survey.runs) > len(runs)
        return self._page(
            request,
            "runs.html",
            runs=runs,
            unreadable=survey.unreadable,
            newest=f"/?{urlencode(filters)}" if run_filter.before is not None else "",
            older=f"/?{urlencode({**filters, 'before': _cursor(runs[-1])})}" if is_more else "",
            statuses=[*map(str, Status)],
            query=chosen,
        )

    def run(self, request: HttpRequest) -> Response:
        """Return the page of a run: its report, its waits, and its actions."""
        run = _find_run_id(request)
        stored = read_stored_run(self.store, run)
        comparison, _ = run_async(read_comparison(self.store, run, stored.latest, stored.started_at))
        available = [] if self.is_read_only else _available_actions(stored)
        is_planned = "resume" in available and "plan" in request.query_params
        plan = self.commands.document(["plan", "--json", "--", run])[1] if is_planned else None
        report = self._report(run, stored, comparison, plan)
        return self._page(
            request,
            "run.html",
            run=run,
            found=stored,
            body=render_body(report),
            actions=[RUN_ACTIONS[name] for name in available],
            is_planned=is_planned,
            waits=[_wait_row(wait) for wait in stored.waits],
            is_live=stored.status in _LIVE,
            from_step=[name for name in available if name in ("resume", "fork")],
            version=_version(stored),
        )

    def inbox(self, request: HttpRequest) -> Response:
        """Return a page of the waits for people, newest runs first."""
        rows: list[tuple[RunInfo, dict[str, Any]]] = []
        run_filter = _make_filter(_INBOX_PAGE, request.query_params.get("before", ""), _LIVE)
        older = ""
        for _ in range(_INBOX_PAGES):
            runs = read_survey(self.store, run_filter).runs
            rows += [(info, _wait_row(wait)) for info in runs for wait in _list_human_waits(info)]
            older = f"/inbox?{urlencode({'before': _cursor(runs[-1])})}" if len(runs) == _INBOX_PAGE else ""
            if not older or len(rows) >= _PAGE_SIZE:
                break
            run_filter = attrs.evolve(run_filter, before=(runs[-1].started_at, runs[-1].workflow_id))
        return self._page(request, "inbox.html", rows=rows, older=older)

    def store_page(self, request: HttpRequest) -> Response:
        """Return the page of the store: its statistics and actions."""
        return self._page(
            request,
            "store.html",
            statistics=self.commands.run(["store", "stats"]),
            actions=[] if self.is_read_only else [*STORE_ACTIONS.values()],
        )

    def action_form(self, request: HttpRequest) -> Response:
        """Return the form of an action and its effect."""
        run, action = self._find_action(request)
        values = dict(request.query_params)
        preview = None
        if action.preview is not None:
            preview = self.commands.run(action.preview(run, values))
        stored = read_stored_run(self.store, run) if run else None
        lines = action.describe(stored, values) if action.describe is not None and stored is not None else []
        if stored is not None and action.name not in {*_available_actions(stored), "approve", "reject"}:
            lines = [f"Nothing: the run is {stored.status.value}."]
        if action.name == "signal":
            values.setdefault("id", new_message_id())  # a form sent twice sends the signal once
        kind = WaitKind.SIGNAL if action.name == "signal" else WaitKind.APPROVAL
        answered = [each for each in stored.waits if each.kind is kind] if stored is not None else []
        if len(answered) == 1:
            values.setdefault("name", answered[0].name)
        wait = next((each for each in answered if values.get("name") in (each.name, each.path)), None)
        if action.name in ("approve", "reject"):  # the question on the page, and not a later one
            values.update({"request": "none"} if wait is None else {"name": wait.path, "request": wait.request_id})
        return self._page(
            request,
            "action.html",
            run=run,
            action=action,
            values=values,
            preview=preview,
            lines=lines,
            checkpoints=stored.checkpoints if stored else (),
            steps=[each.path for each in stored.latest.step_results][:1000] if stored else [],
            wait=None if wait is None else _wait_row(wait),
        )

    async def act(self, request: HttpRequest) -> Response:
        """Start the command of an action."""
        run, action = self._find_action(request)
        values = _parse_form(await request.body())
        if "data_type" in values:
            data = values.get("data", "")
            # The command refuses data that do not fit the wait.
            values["data"] = json.dumps(data) if values.pop("data_type") == "str" else data
        arguments = action.arguments(run, values)
        job = await run_in_threadpool(self.commands.run, arguments, patience=SHORT_SECONDS)
        return RedirectResponse(f"/jobs/{job.number}?run={quote(run, safe='')}", status_code=303)

    def job(self, request: HttpRequest) -> Response:
        """Return the page of a started command."""
        job = self.commands.job(request.path_params["number"])
        if job is None:
            raise HTTPException(404)
        return self._page(request, "job.html", job=job, run=request.query_params.get("run", ""))

    def show_error(self, request: HttpRequest, error: Exception) -> Response:
        """Return the page or document of an error of flowckpt."""
        assert isinstance(error, FlowckptError)
        status = 404 if isinstance(error, CheckpointNotFoundError) else 400 if isinstance(error, SettingError) else 500
        if request.url.path.startswith("/api/"):
            document = {"error": {"type": type(error).__name__, "message": error.message, "remedy": error.remedy}}
            return JSONResponse(document, status_code=status)
        return self._page(request, "error.html", status_code=status, message=error.message, remedy=error.remedy)

    def static_file(self, request: HttpRequest) -> Response:
        """Return a stylesheet or a script."""
        name = request.path_params["name"]
        if name in SCRIPTS:
            return Response(read_static(name), media_type="text/javascript")
        if name == "ui.js":
            return Response(read_static(name, "flowckpt.cli.ui"), media_type="text/javascript")
        if name == "ui.css":
            return Response(f"{read_stylesheet()}\n{read_static(name, 'flowckpt.cli.ui')}", media_type="text/css")
        raise HTTPException(404)

    # --- the JSON API ---

    def api_runs(self, request: HttpRequest) -> Response:
        """Return what `list --json` prints."""
        query = request.query_params
        limit = max(1, _parse_number(query.get("limit"), _PAGE_SIZE))
        run_filter = _make_filter(
            limit + 1,
            query.get("before", ""),
            query.getlist("status"),
            query.get("workflow", ""),
            query.getlist("tag"),
            query.get("q", ""),
        )
        matching = read_survey(self.store, run_filter).runs
        runs, headers = matching[:limit], {}
        if len(matching) > limit:
            others = [(name, value) for name, value in query.multi_items() if name != "before"]
            headers["Link"] = f'</api/runs?{urlencode([*others, ("before", _cursor(runs[-1]))])}>; rel="next"'
        live = read_live_notes(self.store, runs)
        listed = [listed_document(info, live=live.get(info.workflow_id)) for info in runs]
        return JSONResponse(listed, headers=headers)

    def api_run(self, request: HttpRequest) -> Response:
        """Return what `show --json` prints."""
        run = _find_run_id(request)
        stored = read_stored_run(self.store, run)
        return JSONResponse(run_document(run, stored, stored.checkpoints))

    def api_data(self, request: HttpRequest) -> Response:
        """Return the data of the live page of a run; 304 if nothing is newer than `since`."""
        run = _find_run_id(request)
        stored = read_stored_run(self.store, run)
        version = _version(stored)
        if request.query_params.get("since") == version:
            return Response(status_code=304)
        report = self._report(run, stored)
        document = {
            "version": version,
            "status": report.status.value,
            "sentence": report.sentence,
            "graph": svg(report.graph, is_standalone=False),
            "data": report.data(),
            "waits": [str(wait) for wait in stored.waits],
        }
        return JSONResponse(document)

    def api_plan(self, request: HttpRequest) -> Response:
        """Return what `plan --json` prints."""
        return self._run_command(["plan", "--json", "--", _find_run_id(request)])

    def api_store(self, request: HttpRequest) -> Response:
        """Return what `store stats --json` prints."""
        return self._run_command(["store", "stats", "--json"])

    async def api_act(self, request: HttpRequest) -> Response:
        """Run the command of an action; return its document and its exit code."""
        run, action = self._find_action(request)
        try:
            body = json.loads(await request.body() or b"{}")
        except (ValueError, RecursionError):
            body = None
        if not isinstance(body, dict):
            return JSONResponse({"error": {"message": "the body is not a JSON object"}}, status_code=400)
        values = action.values_of(body)
        words = action.arguments(run, values)
        place = 2 if words[0] == "store" else 1
        arguments = [*words[:place], "--json", *words[place:]]
        return await run_in_threadpool(self._run_command, arguments)

    def openapi(self, request: HttpRequest) -> Response:
        """Return the description of the JSON API."""
        return JSONResponse(openapi_document(is_read_only=self.is_read_only))

    # --- parts ---

    def _report(
        self,
        run: str,
        stored: StoredRun,
        comparison: Comparison | None = None,
        plan: Mapping[str, Any] | None = None,
    ) -> RunReport:
        decisions, note = {}, ""
        if plan is not None and "steps" in plan:
            decisions, note = planned_steps(plan), plan_sentence(plan)
        elif plan is not None:
            note = f"The plan failed: {plan['error']['message']}"
        return make_run_report(self.store, run, stored, comparison=comparison, decisions=decisions, plan_note=note)

    def _run_command(self, arguments: Sequence[str]) -> Response:
        """Return the document of a command and its exit code."""
        code, document = self.commands.document(arguments)
        return JSONResponse(document, headers={"X-Exit-Code": str(code)})

    def _find_action(self, request: HttpRequest) -> tuple[str, Action]:
        run = _find_run_id(request)
        action = (RUN_ACTIONS if run else STORE_ACTIONS).get(request.path_params["action"])
        if action is None:
            raise HTTPException(404)
        return run, action

    def _page(self, request: HttpRequest, name: str, *, status_code: int = 200, **values: Any) -> Response:
        text = self.templates.get_template(name).render(
            nonce=request.scope["flowckpt.nonce"],
            form_token=self.guard.form_token,
            store=self.shown_store,
            is_read_only=self.is_read_only,
            version_of_flowckpt=__version__,
            shown_value=format_value,
            **values,
        )
        return HTMLResponse(text, status_code=status_code)


class GuardedApp:
    """Passes only admitted requests to an application, and adds the security headers to every response."""

    def __init__(self, app: ASGIApp, guard: Guard) -> None:
        self.app = app
        self.guard = guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        nonce = scope["flowckpt.nonce"] = secrets.token_urlsafe(16)

        async def send_guarded(message: Any) -> None:
            if message["type"] == "http.response.start":
                headers = {**HEADERS, "Content-Security-Policy": content_policy(nonce)}
                message["headers"] = [
                    *message.get("headers", ()),
                    *((name.lower().encode(), value.encode()) for name, value in headers.items()),
                ]
            await send(message)

        response, receive = await self._admit(scope, receive)
        await (response or self.app)(scope, receive, send_guarded)

    async def _admit(self, scope: Scope, receive: Receive) -> tuple[Response | None, Receive]:
        """Return a refusal, a redirect that sets the cookie, or None, and how to receive the body after that."""
        request = HttpRequest(scope, receive)
        headers = Headers(scope=scope)
        token = request.query_params.get("token", "")
        sent = headers.get("x-csrf-token", "")
        is_form = not sent and "form" in headers.get("content-type", "")
        checked = Request(
            method=scope["method"],
            host=headers.get("host", ""),
            address=_server_address(scope),
            origin=headers.get("origin", ""),
            cookie=headers.get("cookie", ""),
            bearer=headers.get("authorization", "").removeprefix("Bearer ").strip(),
            token=token,
            form_token=self.guard.form_token if is_form else sent,  # a form has it in its body, which is checked below
        )
        refusal = self.guard.refuse(checked)
        if refusal is None and checked.method not in SAFE_METHODS:  # the body of a refused request is not read
            body = await _read_body(request)
            if body is None:
                return PlainTextResponse("The request is too large.\n", status_code=413), receive
            receive = _replay_body(body)
            if is_form and not (checked.bearer or token):
                refusal = self.guard.refuse(attrs.evolve(checked, form_token=_parse_form(body).get("form_token", "")))
        if refusal is not None:
            return PlainTextResponse(f"{refusal.message}\n", status_code=refusal.status), receive
        if not token:
            return None, receive
        # Two slashes would name a host.
        response = RedirectResponse(f"/{request.url.path.lstrip('/')}", status_code=303)
        is_secure = scope["scheme"] == "https"
        response.set_cookie(self.guard.cookie, self.guard.session, httponly=True, samesite="strict", secure=is_secure)
        return response, receive


def _server_address(scope: Scope) -> str:
    """Return the address of this machine to which a request was sent, as a `Host` header writes it."""
    name, port = scope.get("server") or ("", None)
    return f"[{name}]:{port}" if ":" in name else f"{name}:{port}"


async def _read_body(request: HttpRequest) -> bytes | None:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _MOST_BODY:
            return None
    return body


def _parse_form(body: bytes) -> dict[str, str]:
    """Return the fields of an URL-encoded form."""
    return dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))


def _replay_body(body: bytes) -> Receive:
    async def receive() -> Any:
        return {"type": "http.request", "body": body, "more_body": False}

    return receive


def encode_segment(run: str) -> str:
    """Return a run id as a URL segment, encoded twice because a server decodes `%2F` before it routes."""
    return quote(quote(run, safe=""), safe="")


def _find_run_id(request: HttpRequest) -> str:
    return unquote(request.path_params.get("run", ""))


def _available_actions(stored: StoredRun) -> list[str]:
    """Return the actions for a run in its status, without the answers to approvals, which are shown with their waits."""
    names = [] if stored.status is Status.RUNNING else ["resume"]
    names += ["signal"] if stored.status is not Status.COMPLETED else []
    names += ["cancel"] if stored.status in _LIVE or stored.status is Status.FAILED else []
    return [*names, "fork", *(["rollback"] if stored.status is not Status.RUNNING else []), "pin"]


def _make_filter(
    limit: int, before: str, statuses: Iterable[str], workflow: str = "", tags: Iterable[str] = (), text: str = ""
) -> RunFilter:
    """Return the filter of the list for the parameters of a URL.

    Raises:
        SettingError: there is no such status, or `before` is not a place in the list.
    """
    return RunFilter(
        statuses=[*statuses] or None,
        workflow=workflow or None,
        tags=[*map(split_pair, tags)],
        limit=limit,
        text=text,
        before=_parse_cursor(before) if before else None,
    )


def _cursor(info: RunInfo) -> str:
    """Return the place of a run in the list, for a URL."""
    return f"{info.started_at.isoformat()}/{info.workflow_id}"


def _parse_cursor(cursor: str) -> tuple[datetime, str]:
    moment, _, run = cursor.partition("/")
    try:
        started_at = datetime.fromisoformat(moment)
        return started_at.astimezone(UTC), run
    except (ValueError, OverflowError):
        message = f"before={cursor[:100]!r} is not a place in the list of runs"
        raise SettingError(message, setting="before", remedy="Use the link of the previous page.") from None


def _list_human_waits(info: RunInfo) -> list[Wait]:
    """Return the waits of a run for people; those of a live run are taken from its newest checkpoint."""
    return [wait for wait in waits_in(info.metadata) if wait.kind in (WaitKind.APPROVAL, WaitKind.SIGNAL)]


def _wait_row(wait: Wait) -> dict[str, Any]:
    claims = waits.approval_digests(wait) if wait.claims else {}
    return {
        "wait": wait,
        "said": str(wait),
        "question": wait.question,
        "claims": claims,
        "input": _choose_input(wait.data_type),
    }


def _choose_input(data_type: Any) -> dict[str, Any]:
    """Return the form input for the data of a signal."""
    if data_type in ("str", "int", "float", "bool"):
        return {"kind": data_type, "choices": ["true", "false"] if data_type == "bool" else []}
    if isinstance(data_type, list) and data_type[:1] == ["literal"]:
        return {"kind": "choice", "choices": [json.dumps(each) for each in data_type[1:]]}
    return {"kind": "json", "choices": []}


def _version(stored: StoredRun) -> str:
    latest, started = stored.latest, sha256("\n".join(stored.begun).encode("utf-8", "replace")).hexdigest()[:8]
    noted = "" if stored.live is None else f".{stored.live.at.timestamp():.3f}"
    return f"{latest.attempt}.{latest.sequence}.{stored.status.value}.{started}{noted}"


def _parse_number(text: str | None, default: int) -> int:
    try:
        number = float(text or default)
    except ValueError:
        return default
    return int(number) if math.isfinite(number) and abs(number) < 1e9 else default


def _not_found(request: HttpRequest, error: Exception) -> Response:
    return PlainTextResponse(f"There is no page {request.url.path[:200]}\n", status_code=404)


def openapi_document(*, is_read_only: bool) -> dict[str, Any]:
    """Return the OpenAPI description of the JSON API."""
    text, many = {"type": "string"}, {"type": "array", "items": {"type": "string"}}
    queries = [
        _query("status", {"type": "array", "items": {"enum": [*map(str, Status)]}}, "the statuses"),
        _query("workflow", text, "the workflow"),
        _query("tag", many, "a tag: its name, or name=value"),
        _query("q", text, "a part of the id"),
        _query("limit", {"type": "integer", "minimum": 1, "default": _PAGE_SIZE}, "at most this many"),
        _query("before", text, "the place at which the page starts; the header Link has the URL of the next page"),
    ]
    listed = {"type": "array", "items": {"type": "object"}}
    since = _query("since", text, "the version that you have; if nothing is newer, the response is 304")
    summary = "Return the data of a run's page, with their version: attempts, lanes, details, graph and sentence."
    data = _operation(summary, [_RUN, since])
    data["responses"]["304"] = {"description": "nothing is newer than since"}
    paths: dict[str, Any] = {
        "/api/runs": {"get": _operation("List runs, newest first, like `flowckpt list --json`.", queries, listed)},
        "/api/runs/{run}": {
            "get": _operation(
                "Show one run like `flowckpt show --json`, with its running steps (`live`) and published values.",
                [_RUN],
            )
        },
        "/api/runs/{run}/data": {"get": data},
        "/api/store": {
            "get": _operation("Return the statistics of the store, like `flowckpt store stats --json`.", [])
        },
    }
    if not is_read_only:
        summary = "Plan a resume, like `flowckpt plan --json`. The header X-Exit-Code has the exit code."
        paths["/api/runs/{run}/plan"] = {"get": _operation(summary, [_RUN])}
        for start, parameters, actions in (("/api/runs/{run}", [_RUN], RUN_ACTIONS), ("/api/store", [], STORE_ACTIONS)):
            for action in actions.values():
                summary = f"{action.effect} Returns the --json document of the command; X-Exit-Code has its exit code."
                operation = _operation(summary, parameters)
                operation["requestBody"] = {"content": {"application/json": {"schema": action.schema()}}}
                paths[f"{start}/{action.name}"] = {"post": operation}
    return {
        "openapi": "3.1.0",
        "info": {"title": "flowckpt", "version": __version__},
        "paths": paths,
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{"token": []}],
    }


_RUN = {
    "name": "run",
    "in": "path",
    "required": True,
    "schema": {"type": "string"},
    "description": "the run id, percent-encoded twice",
}


def _query(name: str, schema: Mapping[str, Any], description: str) -> dict[str, Any]:
    return {"name": name, "in": "query", "schema": schema, "description": description}


def _operation(summary: str, parameters: list[Any], schema: Mapping[str, Any] | None = None) -> dict[str, Any]:
    content = {"application/json": {"schema": dict(schema or {"type": "object"})}}
    responses = {
        "200": {"description": "the document", "content": content},
        "400": {"description": "a parameter or a field is invalid"},
        "404": {"description": "no such run"},
    }
    return {"summary": summary, "parameters": parameters, "responses": responses}
