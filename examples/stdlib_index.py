"""An index of the standard library's own source: a SQLite database with full-text search, and an HTML report.

    flowckpt run examples/stdlib_index.py        # 10 to 20 seconds; kill it at any time, even with kill -9
    flowckpt resume --last                       # it continues from the last checkpoint
    sqlite3 stdlib-index/index.db "SELECT name FROM search WHERE search MATCH 'temporary directory' ORDER BY rank"

However often it is killed, it ends with the same database and the same report, byte for byte. Three habits make it so,
and they are all that a step has to care about: it writes a file beside its place and then renames it, it says nothing
of when or where it ran, and it works in a fixed order. What is large goes to a file; the checkpoint holds its digest.
"""

import ast
import hashlib
import html
import json
import os
import platform
import sqlite3
import sysconfig
import warnings
from collections import Counter, defaultdict
from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import attrs

from flowckpt import run_sync, step, workflow
from flowckpt.evidence import file_sha256

NOT_OURS = {"site-packages", "dist-packages", "__pycache__"}
TESTS = {"test", "tests", "idle_test"}
SHOWN = 20


@attrs.frozen
class Sources:
    root: Path
    python: str
    files: list[tuple[str, int]]  # path below the root, size


@attrs.frozen
class Batch:
    file: Path
    sha256: str
    modules: int
    broken: list[str]


@attrs.frozen
class Package:
    name: str
    files: int
    lines: int
    functions: int
    classes: int
    documented: int

    @property
    def coverage(self) -> float:
        return self.documented / max(1, self.files + self.functions + self.classes)


@attrs.frozen
class Metrics:
    packages: list[Package]
    longest: list[tuple[str, int]]
    imported: list[tuple[str, int]]


@attrs.frozen
class Summary:
    modules: int
    symbols: int
    database: Path
    report: Path


@workflow("stdlib-index")
def stdlib_index(
    output: Path = Path("stdlib-index"), batch_size: int = 40, limit: int | None = None, tests: bool = True
) -> Generator[Any, Any, Summary]:
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, not {batch_size}")
    # The absolute path is recorded, so a resume from another directory still continues in this one.
    target = yield step("prepare").python(prepare, output).checkpoint()
    # `yield from` is the same step with its type kept: type checkers know that these are `Sources`.
    sources = yield from step("discover").python(discover, limit, tests=tests).checkpoint()
    batches: list[Batch] = []
    for start in range(0, len(sources.files), batch_size):
        files = [path for path, _ in sources.files[start : start + batch_size]]
        file = target / f"parsed/{len(batches):04}.jsonl"
        # parse, parse[1], …: a resume reuses each result only if its file is unchanged.
        parsing = step("parse").python(parse, sources.root, files, file).evidence(file_sha256(file))
        batch = yield from parsing.checkpoint()
        batches.append(batch)
    metrics = yield from step("measure").python(measure, batches).checkpoint()
    load_database = step("load").python(load, batches, target / "index.db").evidence(file_sha256(target / "index.db"))
    symbols = yield from load_database.retry(3, backoff=0.5, on=sqlite3.OperationalError).checkpoint()
    broken = [path for batch in batches for path in batch.broken]
    reporting = step("report").python(report_on, sources, metrics, broken, target / "report.html")
    report = yield from reporting.evidence(file_sha256(target / "report.html")).checkpoint()
    return Summary(sum(batch.modules for batch in batches), symbols, target / "index.db", report)


# --- the steps -------------------------------------------------------------------------------------------------------


def prepare(output: Path) -> Path:
    (output / "parsed").mkdir(parents=True, exist_ok=True)
    return output.resolve()


def discover(limit: int | None, *, tests: bool) -> Sources:
    root = Path(sysconfig.get_path("stdlib"))
    skipped = NOT_OURS if tests else NOT_OURS | TESTS
    found: list[tuple[str, int]] = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in skipped]
        paths = [Path(folder, name) for name in names if name.endswith(".py")]
        found += [(path.relative_to(root).as_posix(), path.stat().st_size) for path in paths]
    return Sources(root, platform.python_version(), sorted(found)[:limit])


def parse(root: Path, files: list[str], target: Path) -> Batch:
    modules: list[Module] = []
    broken: list[str] = []
    for path in files:
        try:
            modules.append(extract(path, (root / path).read_bytes()))
        except (SyntaxError, ValueError, RecursionError):  # the test suite has deliberately broken files
            broken.append(path)
    content = "".join(json.dumps(module) + "\n" for module in modules).encode()
    write(target, content)
    return Batch(target, hashlib.sha256(content).hexdigest(), len(modules), broken)


def measure(batches: list[Batch]) -> Metrics:
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    imported: Counter[str] = Counter()
    functions: Counter[str] = Counter()
    for module in read(batches):
        imported.update(module.imports)
        package = counts[module.path.split("/")[0].removesuffix(".py")]
        package["lines"] += module.lines
        for symbol in module.symbols:
            package[symbol.kind] += 1
            package["documented"] += bool(symbol.docstring)
            if symbol.kind == "function":
                functions[symbol.name] = max(functions[symbol.name], symbol.lines)
    columns = ("module", "lines", "function", "class", "documented")
    packages = [Package(name, *(count[column] for column in columns)) for name, count in counts.items()]
    return Metrics(sorted(packages, key=lambda p: (-p.lines, p.name)), top(functions), top(imported))


def load(batches: list[Batch], target: Path) -> int:
    unfinished = target.with_suffix(".tmp")
    unfinished.unlink(missing_ok=True)
    with closing(sqlite3.connect(unfinished)) as database:
        try:
            database.executescript(SCHEMA)
        except sqlite3.OperationalError as error:
            if "no such module" in str(error):
                raise RuntimeError(f"This Python's SQLite {sqlite3.sqlite_version} lacks FTS5: {error}") from error
            raise
        for module in read(batches):
            row = (module.path, module.lines)
            key = database.execute("INSERT INTO modules (path, lines) VALUES (?, ?)", row).lastrowid
            database.executemany("INSERT INTO imports VALUES (?, ?)", [(key, name) for name in module.imports])
            rows = [(key, *symbol) for symbol in module.symbols]
            database.executemany(f"INSERT INTO symbols ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)", rows)
        database.execute("INSERT INTO search (search) VALUES ('rebuild')")
        database.commit()
        symbols = int(database.execute("SELECT count(*) FROM symbols").fetchone()[0])
    move_into_place(unfinished, target)
    return symbols


def report_on(sources: Sources, metrics: Metrics, broken: list[str], target: Path) -> Path:
    packages = metrics.packages
    figures = {
        "files": f"{len(sources.files):,}",
        "megabytes": f"{sum(size for _, size in sources.files) / 1e6:.1f}",
        "lines": f"{sum(package.lines for package in packages):,}",
        "functions": f"{sum(package.functions for package in packages):,}",
        "classes": f"{sum(package.classes for package in packages):,}",
    }
    largest = [(p.name, p.files, p.lines, p.functions, p.classes, f"{p.coverage:.0%}") for p in packages[: 2 * SHOWN]]
    page = PAGE.format(
        python=html.escape(sources.python),
        figures="".join(f"<div><b>{value}</b>{label}</div>" for label, value in figures.items()),
        chart=chart(packages[:SHOWN]),
        packages=table(("package", "files", "lines", "functions", "classes", "documented"), largest),
        longest=table(("longest functions", "lines"), metrics.longest),
        imported=table(("most imported", "by files"), metrics.imported),
        broken=html.escape(", ".join(broken)) or "none",
    )
    write(target, page.encode())
    return target


# --- helpers of the steps --------------------------------------------------------------------------------------------


class Symbol(NamedTuple):
    kind: str  # module, class or function
    name: str
    line: int
    lines: int
    docstring: str


class Module(NamedTuple):
    path: str
    lines: int
    imports: list[str]
    symbols: list[Symbol]


def extract(path: str, source: bytes) -> Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of the compiler about the library do not matter here
        tree = ast.parse(source)
    lines = len(source.splitlines())
    name = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    symbols = [Symbol("module", name, 1, lines, docstring_of(tree))]
    imports: set[str] = set()
    pending: list[tuple[ast.AST, str]] = [(tree, name)]
    while pending:  # not recursive: some expressions nest deeper than Python's stack
        node, scope = pending.pop()
        if isinstance(node, ast.Import):
            imports.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            imports.add(node.module.split(".")[0])
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            scope = f"{scope}.{node.name}"
            kind = "class" if isinstance(node, ast.ClassDef) else "function"
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            symbols.append(Symbol(kind, scope, node.lineno, length, docstring_of(node)))
        pending.extend((child, scope) for child in ast.iter_child_nodes(node))
    return Module(path, lines, sorted(imports), sorted(symbols, key=lambda symbol: (symbol.line, symbol.name)))


def docstring_of(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    return (ast.get_docstring(node) or "").encode(errors="replace").decode()  # a database takes no lone surrogates


def read(batches: list[Batch]) -> Iterator[Module]:
    for batch in batches:
        content = batch.file.read_bytes()
        if hashlib.sha256(content).hexdigest() != batch.sha256:
            raise ValueError(f"{batch.file} is not what the parse step wrote")
        for line in content.splitlines():
            path, lines, imports, symbols = json.loads(line)
            yield Module(path, lines, imports, [Symbol(*symbol) for symbol in symbols])


def top(counter: Counter[str]) -> list[tuple[str, int]]:
    return sorted(counter.items(), key=lambda item: (-item[1], item[0]))[:SHOWN]


def write(target: Path, content: bytes) -> None:
    unfinished = target.with_suffix(".tmp")
    unfinished.write_bytes(content)
    move_into_place(unfinished, target)


def move_into_place(unfinished: Path, target: Path) -> None:
    """Rename a file so that `target` is complete or missing, even after a power cut."""
    sync(unfinished)
    unfinished.replace(target)
    sync(target.parent)


def sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def table(head: tuple[str, ...], rows: list[Any]) -> str:
    def line(tag: str, cells: tuple[str | int, ...]) -> str:
        shown = (f"{cell:,}" if isinstance(cell, int) else html.escape(cell) for cell in cells)
        return "<tr>" + "".join(f"<{tag}>{cell}</{tag}>" for cell in shown) + "</tr>"

    return f"<table><thead>{line('th', head)}</thead><tbody>{''.join(line('td', row) for row in rows)}</tbody></table>"


def chart(packages: list[Package]) -> str:
    bars = []
    for row, package in enumerate(packages):
        top, name, shape = 26 * row, html.escape(package.name), f'x="160" y="{26 * row + 4}" height="18" rx="4"'
        bars.append(
            f"<g><title>{name}: {package.documented:,} documented, {package.lines:,} lines</title>"
            f'<text x="150" y="{top + 17}" text-anchor="end">{name}</text><rect class="track" width="420" {shape}/>'
            f'<rect class="bar" width="{420 * package.coverage:.1f}" {shape}/>'
            f'<text class="value" x="590" y="{top + 17}">{package.coverage:.0%}</text></g>'
        )
    view = f'viewBox="0 0 640 {26 * len(packages)}"'
    return f'<svg {view} role="img" aria-label="Documented definitions by package">{"".join(bars)}</svg>'


COLUMNS = "module, kind, name, line, lines, docstring"
SCHEMA = """
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
CREATE TABLE modules (id INTEGER PRIMARY KEY, path TEXT NOT NULL, lines INTEGER NOT NULL);
CREATE TABLE imports (module INTEGER NOT NULL REFERENCES modules, name TEXT NOT NULL);
CREATE TABLE symbols (id INTEGER PRIMARY KEY, module INTEGER NOT NULL REFERENCES modules, kind TEXT NOT NULL,
                      name TEXT NOT NULL, line INTEGER NOT NULL, lines INTEGER NOT NULL, docstring TEXT NOT NULL);
CREATE VIRTUAL TABLE search
USING fts5 (name, docstring, content='symbols', content_rowid='id', tokenize='porter unicode61');
"""

PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>The standard library of Python {python}</title>
<style>
:root {{ color-scheme: light dark; --back: #fbfbfa; --text: #23262b; --soft: #6b7079; --line: #e4e5e7; --bar: #2f6fb0; }}
@media (prefers-color-scheme: dark) {{
  :root {{ --back: #16181c; --text: #e3e5e8; --soft: #969ca6; --line: #2c3037; --bar: #5b9bd9; }}
}}
body {{ font: 15px/1.5 system-ui, sans-serif; background: var(--back); color: var(--text);
       max-width: 60rem; margin: 3rem auto; padding: 0 1.25rem; }}
h1 {{ font-size: 1.7rem; margin: 0; }} h2 {{ font-size: 1.1rem; margin: 2.5rem 0 .75rem; }} p {{ color: var(--soft); }}
.figures, .columns {{ display: flex; flex-wrap: wrap; gap: 1rem 2.5rem; margin: 1.5rem 0; }}
.figures div {{ color: var(--soft); }} .figures b {{ display: block; font-size: 1.5rem; color: var(--text); }}
.columns > * {{ flex: 1 1 20rem; overflow-wrap: anywhere; align-self: start; }}
table {{ width: 100%; border-collapse: collapse; font-variant-numeric: tabular-nums; }}
th, td {{ padding: .25rem .5rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }}
th {{ color: var(--soft); font-weight: 500; }}
th:first-child, td:first-child {{ text-align: left; padding-left: 0; white-space: normal; }}
svg {{ width: 100%; max-width: 42rem; }} text {{ fill: var(--text); font: 13px system-ui, sans-serif; }}
.value {{ fill: var(--soft); }} .track {{ fill: var(--line); }} .bar {{ fill: var(--bar); }}
</style></head><body>
<h1>The standard library of Python {python}</h1>
<p>Read from its own source files.</p>
<div class="figures">{figures}</div>
<h2>How much of the largest packages is documented</h2>
<p>The share of modules, classes and functions with a docstring.</p>
{chart}
<h2>The largest packages</h2>
{packages}
<div class="columns">{longest}{imported}</div>
<p>Files that cannot be parsed: {broken}.</p>
</body></html>
"""


if __name__ == "__main__":
    print(run_sync(stdlib_index).unwrap())
