"""The table of what the agent needs of megatron-core, compared with sources that are not imported."""

import dataclasses
import importlib.util
from pathlib import Path

import pytest

from relibra.agent.needed_in_sources import missing_in
from relibra.agent.needs import DISPATCHER_NEEDS, NEEDS, REPLAY_NEEDS, Need, Use

SOURCES = {
    "__init__.py": "from .functions import run as renamed\nfrom .classes import Late",
    "functions.py": "def run(first, second=0, *rest, extra=None): ...",
    "base.py": """
class Base:
    field: int = 0

    def __init__(self):
        self.inherited = 1

    def method(self, tokens, probs, *, buffer=None): ...
""",
    "classes.py": """
from a.base import Base as Renamed
try:
    import nothing
except ImportError:
    class Late(Renamed):
        def own(self): ...
""",
}


def need(name: str, use: Use, *takes: str, module: str = "a", unused: tuple[str, ...] = ()) -> Need:
    return Need(module, name, "why", use, takes, unused)


OF_DISPATCHERS = [need for of_class in DISPATCHER_NEEDS.values() for need in of_class]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "a").mkdir()
    for name, text in SOURCES.items():
        (tmp_path / "a" / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("looked_for", "is_there"),
    [
        (need("Late", Use.READ), True),
        (need("Early", Use.READ), False),
        (need("Late.own", Use.READ), True),
        (need("Late.inherited", Use.HELD), True),
        (need("Late.field", Use.HELD), True),
        (need("Late.other", Use.HELD), False),
        (need("Late.method", Use.REPLACED, "tokens", "probs", "buffer"), True),
        (need("Late.method", Use.REPLACED, "tokens", "probs", unused=("buffer",)), True),
        (need("Late.method", Use.REPLACED, "tokens", "probs"), False),
        (need("Late.method", Use.CALLED, "tokens", "probs"), True),
        (need("Late.method", Use.CALLED, "tokens"), False),
        (need("renamed", Use.CALLED, "first"), True),
        (need("renamed", Use.CALLED, "first", "missing"), False),
        (need("run", Use.REPLACED, "first", "second", "*rest", "extra", module="a.functions"), True),
        (need("run", Use.READ, module="a.nothing"), False),
    ],
)
def test_definitions_are_found_through_imports_and_bases(root, looked_for, is_there):
    assert (missing_in(root, [looked_for]) == []) == is_there


def test_another_signature_is_named(root):
    (lack,) = missing_in(root, [need("Late.method", Use.REPLACED, "tokens")])
    assert lack == "a.Late.method(tokens) (why): it has (tokens, probs, buffer)"


@pytest.fixture(scope="module")
def megatron() -> Path:
    spec = importlib.util.find_spec("megatron")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0]).parent


def test_S5_the_installed_megatron_has_everything(megatron):
    assert missing_in(megatron) == []
    assert missing_in(megatron, REPLAY_NEEDS) == []
    assert missing_in(megatron, OF_DISPATCHERS) == []


@pytest.mark.parametrize("each", [*NEEDS, *REPLAY_NEEDS, *OF_DISPATCHERS], ids=lambda each: each.name)
def test_S5_every_attribute_is_missed_under_another_name(megatron, each):
    renamed = dataclasses.replace(each, name=f"{each.name}_of_another_version")
    assert len(missing_in(megatron, [renamed])) == 1
