"""The documentation as a site: `sphinx-build docs build/docs`, with sphinx, furo and myst-parser."""

from pathlib import Path

version_file = Path(__file__).parent.parent / "flowckpt" / "_version.py"

project = "flowckpt"
author = "The flowckpt developers"
project_copyright = f"2026, {author}"
release = version = version_file.read_text(encoding="utf-8").split('__version__ = "')[1].split('"')[0]

extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["build"]
nitpicky = True

myst_heading_anchors = 4  # links between pages use the anchors that GitHub makes, too
myst_enable_extensions = ["colon_fence"]
suppress_warnings = ["misc.highlighting_failure"]  # JSON with an ellipsis in it

html_theme = "furo"
html_title = "flowckpt"
html_show_sourcelink = False
