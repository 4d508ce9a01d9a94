import pytest


@pytest.fixture(autouse=True)
def _can_parse_bash() -> None:
    pytest.importorskip("tree_sitter_bash")
