"""The machine code of an image, copied to where numba can add to it; tests/containers runs images themselves."""

from pathlib import Path

import pytest

from relibra.planner.solve import machine_code


@pytest.fixture
def shipped(tmp_path: Path) -> Path:
    folder = tmp_path / "shipped"
    (folder / "planning").mkdir(parents=True)
    (folder / "planning" / "solve.nbi").write_text("code")
    return folder


def test_a_new_container_gets_the_code_and_keeps_what_it_adds(
    shipped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "tmp" / "numba"
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(folder))
    for _ in ("the first start", "a restart"):
        machine_code.provide(shipped)
        assert (folder / "planning" / "solve.nbi").read_text() == "code"
        assert [each.name for each in folder.parent.iterdir()] == ["numba"]
        (folder / "planning" / "solve.nbi").write_text("code")
        (folder / "added").touch()
    assert (folder / "added").exists()


def test_a_copy_that_cannot_be_made_is_told_of(
    shipped: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(shipped / "planning" / "solve.nbi" / "numba"))
    machine_code.provide(shipped)
    assert "the solver compiles its code again" in caplog.text


def test_nothing_is_copied_for_a_numba_that_has_no_folder_of_its_own(
    shipped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    machine_code.provide(shipped)
    assert list(tmp_path.iterdir()) == [shipped]
