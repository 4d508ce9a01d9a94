"""The runbook as a page: the one of the version that runs, for people on call, who may have no repository at hand."""

import functools
import re
from collections.abc import Mapping
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

from relibra.status.health import JobState

_INSTALLED = Path(__file__).with_name("runbook_pages")
_IN_REPOSITORY = Path(__file__).parents[3] / "docs" / "runbook"
_PAGES = ("jobs", "planners", "redis", "worse")

_SECTIONS: Mapping[JobState, str] = {
    JobState.FAILING: "relibrajobfailing",
    JobState.STALLED: "relibrajobstalled",
    JobState.UNBALANCED: "relibranotbalancing",
    JobState.ATTENTION: "first",
    JobState.WAITING: "first",
}


def runbook_path(state: JobState) -> str | None:
    """Return the path of the page and section that say what to do about a state; None if there is nothing to do."""
    section = _SECTIONS.get(state)
    return None if section is None else f"/runbook#{section}"


def runbook_text() -> str:
    """Return the pages of the runbook as one page: one title, and links between them as links inside it."""
    folder = _INSTALLED if _INSTALLED.exists() else _IN_REPOSITORY
    first, *others = ((folder / f"{name}.md").read_text(encoding="utf-8") for name in _PAGES)
    text = "\n".join([first, *(f"#{other}" for other in others)])
    return re.sub(rf"\]\((?:{'|'.join(_PAGES)})\.md(#[\w-]+)\)", r"](\1)", text)


@functools.cache
def runbook_html() -> Markup:
    """Return the runbook as HTML. Every heading is an anchor, under the names that GitHub gives them."""
    markdown = MarkdownIt("commonmark").enable("table")
    tokens = markdown.parse(runbook_text())
    for index, token in enumerate(tokens):
        if token.type == "heading_open":
            token.attrSet("id", _anchor(tokens[index + 1].content))
        _drop_links_away(token.children or [])
    return Markup(markdown.renderer.render(tokens, markdown.options, {}))


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def _drop_links_away(tokens: list[Token]) -> None:
    """Turn links to other pages of the documentation into text that names the page, because only this one is served."""
    is_away = False
    for token in tokens:
        if token.type == "link_open":
            address = str(token.attrGet("href"))
            is_away = not address.startswith(("#", "http://", "https://"))
            if is_away:
                token.tag, token.attrs = "span", {"title": f"docs/{address}"}
        elif token.type == "link_close" and is_away:
            token.tag, is_away = "span", False
