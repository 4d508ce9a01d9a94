"""How `make docs` builds the pages: Markdown as it reads on GitHub, and the API from its docstrings."""

import re
from importlib import metadata
from typing import Any

from sphinx.application import Sphinx

project = "relibra"
author = "the relibra developers"
release = metadata.version("relibra")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = "relibra"
html_copy_source = False

# Anchors as GitHub makes them, so that a link works in both places.
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_class_signature = "separated"

# Nothing is fetched while building, so what other packages define is not linked; nor is what users do not see.
nitpick_ignore_regex = [
    ("py:.*", r"(?!relibra\.).*"),
    ("py:class", r"relibra\.agent\.(experts\.Experts|homes\.homes\.Homes|groups\.Groups|cells\.visit\.ReplicaContext)"),
    ("py:class", r"relibra\.rollout\.(engine_reporter\.RequestOutput|reporter\.Tensor)"),
]


def setup(app: Sphinx) -> None:
    """Read docstrings as they are written: before napoleon, which is for their sections."""
    app.connect("autodoc-process-docstring", read_as_markdown, priority=400)


def read_as_markdown(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Let names in backticks and indented blocks be code. Of a module, take the first line: the page says the rest."""
    text = "\n".join(lines[:1] if what == "module" else lines)
    text = re.sub(r"(?<!`)`([^`\n]+)`(?!`)", r"``\1``", text)
    lines[:] = re.sub(r"^(\S.*)\n\n(?=    \S)", r"\1\n\n::\n\n", text, flags=re.M).split("\n")
