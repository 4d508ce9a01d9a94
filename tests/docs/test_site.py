"""The site builds without a warning, its links lead somewhere, and only its diagrams need the network.

Other tests of this folder follow the links of the pages themselves.
"""

import re
import subprocess
import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

import pytest

from harness.doc_blocks import PAGES, REPOSITORY

pytestmark = pytest.mark.long


class Page(HTMLParser):
    """The links of a page, the files it loads, and its anchors."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.loads: set[str] = set()
        self.anchors: set[str] = set()
        self.has_diagram = False
        self._is_script = False
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value for name, value in attrs if value}
        self.anchors |= {found[name] for name in ("id", "name") if name in found}
        self.has_diagram |= found.get("class") == "mermaid"
        self._is_script = tag == "script"
        if tag == "a" and "href" in found:
            self.links.add(found["href"])
        else:
            self.loads |= {found[name] for name in ("src", "href") if name in found}

    def handle_endtag(self, tag: str) -> None:
        self._is_script = False

    def handle_data(self, data: str) -> None:
        if self._is_script:
            self.loads |= set(re.findall(r"\b(?:import|from)\b[ (]*[\"']([^\"']+)", data))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Page]:
    """Build the site; return its pages by path."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "-n", "--keep-going", "-q", str(REPOSITORY / "docs"), str(folder)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return {path: Page(path) for path in folder.rglob("*.html")}


def test_every_link_and_anchor_of_the_site_is_there(site: dict[Path, Page]) -> None:
    broken = []
    for path, page in site.items():
        for link in page.links | page.loads:
            where, anchor = urldefrag(link)
            if urlsplit(where).scheme:
                continue
            target = (path.parent / unquote(urlsplit(where).path)).resolve() if where else path
            known = site[target].anchors if target in site else set()
            if not target.exists() or (anchor and target in site and unquote(anchor) not in known):
                broken.append(f"{path.name}: {link}")
    assert broken == []


def test_the_site_loads_nothing_from_elsewhere_but_what_draws_diagrams(site: dict[Path, Page]) -> None:
    loaded = {link for page in site.values() for link in page.loads if urlsplit(link).netloc}
    assert all(re.fullmatch(r"https://cdn\.jsdelivr\.net/npm/mermaid@[\d.]+/dist/[\w.]+\.mjs", link) for link in loaded)
    assert len(loaded) == any(page.has_diagram for page in site.values())
    assert {path.stem for path in site} >= {page.stem for page in PAGES if page.parent != REPOSITORY}


def test_what_a_program_may_use_is_in_the_reference(site: dict[Path, Page]) -> None:
    import relibra.agent
    import relibra.planning
    import relibra.rollout
    import relibra.routing

    (reference,) = (page.anchors for path, page in site.items() if path.name == "api.html")
    for package in (relibra.agent, relibra.planning, relibra.rollout, relibra.routing):
        missing = [name for name in package.__all__ if not any(each.endswith(f".{name}") for each in reference)]
        assert missing == [], package.__name__


@cache
def headings(path: Path) -> set[str]:
    """Return the anchors that GitHub gives the headings of a page."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
    found = re.findall(r"^#+ (.+)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in found}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_links_lead_somewhere_on_github_too(page: Path) -> None:
    text = re.sub(r"^```.*?^```$|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        where, anchor = urldefrag(link)
        if urlsplit(where).scheme:
            continue
        target = (page.parent / where).resolve() if where else page
        assert target.exists(), link
        assert not anchor or anchor in headings(target), link
