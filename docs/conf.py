"""The configuration of `make docs`: pages as GitHub shows them, and the API from its docstrings."""

import re
from importlib import metadata
from typing import Any

from sphinx.application import Sphinx

project = "relibra"
author = "the relibra developers"
release = metadata.version("relibra")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinxcontrib.mermaid"]
myst_fence_as_directive = ["mermaid"]
mermaid_fullscreen = False
mermaid_height = "auto"

html_theme = "furo"
html_title = "relibra"
html_copy_source = False

# The same anchors as on GitHub, so that a link works in both places.
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_class_signature = "separated"

# Building fetches nothing, so names of other packages are not links. Neither are names that users never see.
nitpick_ignore_regex = [
    ("py:.*", r"(?!relibra\.).*"),
    (
        "py:class",
        r"relibra\.agent\.(experts\.Experts|groups\.Groups|setting\.Refusal|cells\.visit\.ReplicaContext|"
        r"plans\.stopwatch\.Clock)",
    ),
    ("py:class", r"relibra\.plugins\.planned_passes\.PlannedPasses"),
    ("py:class", r"relibra\.agent\.homes\.(homes\.Homes|guard\.WeightGuard|by_place\.PlaceNames)"),
    ("py:class", r"relibra\.(rollout\.reporter\.Tensor|routing\.engine_outputs\.RequestOutput)"),
]


def setup(app: Sphinx) -> None:
    """Translate docstrings before napoleon reads their sections."""
    app.connect("autodoc-process-docstring", read_as_markdown, priority=400)


def read_as_markdown(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Turn names in backticks and indented blocks into code; keep only the first line of a module's docstring."""
    text = "\n".join(lines[:1] if what == "module" else lines)
    text = re.sub(r"(?<!`)`([^`\n]+)`(?!`)", r"``\1``", text)
    lines[:] = re.sub(r"^(\S.*)\n\n(?=    \S)", r"\1\n\n::\n\n", text, flags=re.M).split("\n")
