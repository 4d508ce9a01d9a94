from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
ROOTS = ("proto", "services", "trainer_agent", "kernels")


@pytest.mark.parametrize("root", ROOTS)
def test_namespace_has_no_init(root: str) -> None:
    """One `relibra/__init__.py` would hide the other three source roots."""
    assert (REPOSITORY / root / "relibra").is_dir()
    assert not (REPOSITORY / root / "relibra" / "__init__.py").exists()


def _packages() -> list[Path]:
    return sorted(
        folder
        for root in ROOTS
        for folder in (REPOSITORY / root / "relibra").iterdir()
        if folder.is_dir() and any(folder.glob("*.py"))
    )


@pytest.mark.parametrize("folder", _packages(), ids=lambda folder: folder.name)
def test_every_package_is_typed_and_says_what_lives_there(folder: Path) -> None:
    assert (folder / "py.typed").exists()
    first_line = (folder / "__init__.py").read_text().splitlines()[0]
    assert first_line.startswith('"""')
    assert len(first_line) > 20


def test_no_package_is_in_two_roots() -> None:
    names = [folder.name for folder in _packages()]
    assert len(names) == len(set(names))
