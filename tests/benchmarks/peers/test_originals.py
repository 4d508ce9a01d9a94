import sys

import pytest

from benchmarks.peers.originals import import_original


@pytest.fixture
def checkout(tmp_path):
    """A package whose __init__ needs an engine, and whose planner needs a neighbour and a logger of the engine."""
    policy = tmp_path / "engine" / "policy"
    policy.mkdir(parents=True)
    (tmp_path / "engine" / "__init__.py").write_text("raise ImportError('needs a GPU')")
    (policy / "__init__.py").write_text("raise ImportError('needs a server')")
    (policy / "base.py").write_text("BASE = 7")
    (policy / "planner.py").write_text(
        "from engine.logs import logger\nfrom .base import BASE\n\ndef plan():\n    return BASE, logger\n"
    )
    return tmp_path


def test_a_module_comes_without_its_packages_and_with_stand_ins(checkout):
    module = import_original(checkout, "engine.policy.planner", {"engine.logs": {"logger": "quiet"}})
    assert module.plan() == (7, "quiet")


def test_what_was_imported_before_stays_and_only_the_module_itself_joins_it(checkout, monkeypatch):
    real = type(sys)("engine")
    monkeypatch.setitem(sys.modules, "engine", real)
    before = dict(sys.modules)
    module = import_original(checkout, "engine.policy.base")
    joined = {name: each for name, each in sys.modules.items() if before.get(name) is not each}
    assert joined == {"engine.policy.base": module}


def test_a_module_that_needs_more_is_refused_by_the_name_of_what_it_needs(checkout):
    with pytest.raises(ImportError, match=r"engine\.logs"):
        import_original(checkout, "engine.policy.planner")
