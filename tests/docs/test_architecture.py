"""The map of the architecture page shows every package of the tree, and its list of imports is that of the code."""

import re
from itertools import chain

import grimp
import pytest

from harness.doc_blocks import REPOSITORY, blocks

PAGE = REPOSITORY / "docs" / "architecture.md"
TEXT = PAGE.read_text(encoding="utf-8")
ROOTS = ("services", "trainer_agent", "kernels", "proto")
FOR_ALL = {"errors", "atomic_file", "environment", "service_log", "tied_process"}
"""Modules that every package may import, so the page does not repeat them."""


def rooms_of_the_tree() -> set[str]:
    """Return packages and wings as `planning/bounds/`, and modules at the top as `errors.py`, relative to `relibra`."""
    found: set[str] = set()
    for namespace in (REPOSITORY / root / "relibra" for root in ROOTS):
        packages = (path.parent for path in namespace.rglob("__init__.py"))
        found |= {f"{package.relative_to(namespace)}/" for package in packages}
        found |= {path.name for path in namespace.glob("*.py")}
    return found


def rooms_of_the_map() -> dict[str, str]:
    """Return the purpose of every room that the tables of the map name."""
    rows = re.findall(r"^\| `([\w/.]+)` \| ([^|]+) \|[^|]*\|$", TEXT, re.M)
    assert len(rows) == len(dict(rows)), "the map names a room twice"
    return dict(rows)


def test_every_room_of_the_tree_is_on_the_map():
    assert set(rooms_of_the_map()) == rooms_of_the_tree()


def named_paths() -> list[str]:
    """Return everything in backticks that is written as a folder or a file."""
    prose = re.sub(r"^```.*?^```$", "", TEXT, flags=re.M | re.S)
    return sorted({span for span in re.findall(r"`([^`\n]+)`", prose) if re.fullmatch(r"[\w/]+(/|\.\w+)", span)})


@pytest.mark.parametrize("named", named_paths())
def test_every_path_of_the_page_exists(named: str) -> None:
    places = [REPOSITORY, *(REPOSITORY / root / "relibra" for root in ROOTS)]
    found = [place / named for place in places if (place / named).exists()]
    assert found
    assert found[0].is_dir() == named.endswith("/")


def test_packages_of_the_diagram_exist() -> None:
    packages = {path.rstrip("/").removesuffix(".py") for path in rooms_of_the_tree() if "/" not in path.rstrip("/")}
    (diagram,) = [block.text for block in blocks(PAGE) if block.language == "mermaid"]
    named = re.findall(r"\brelibra\.(\w+)", diagram)
    assert named
    assert set(named) <= packages


def test_packages_import_what_the_page_says() -> None:
    (listed,) = [block.text for block in blocks(PAGE) if block.language == "text"]
    said = {line.split(" -> ")[0]: set(line.split(" -> ")[1].split(", ")) for line in listed.splitlines()}
    graph = grimp.build_graph("relibra", cache_dir=None)
    done: dict[str, set[str]] = {}
    for module in graph.modules - {"relibra"}:
        imported = graph.find_modules_directly_imported_by(module)
        done.setdefault(module.split(".")[1], set()).update(each.split(".")[1] for each in imported)
    real = {package: others - FOR_ALL - {package} for package, others in done.items()}
    assert said == {package: others for package, others in real.items() if others}
    order = [*said, *sorted(set(chain(*said.values())) - set(said))]
    upward = [
        f"{package} -> {other}"
        for package in said
        for other in said[package]
        if order.index(other) < order.index(package)
    ]
    assert upward == [], "the list is highest first"
