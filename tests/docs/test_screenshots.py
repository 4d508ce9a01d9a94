"""The script takes every screenshot, and a page shows it."""

from docs.screenshots import FOLDER, SHOTS
from harness.doc_blocks import PAGES


def test_every_screenshot_is_taken_by_the_script_and_shown() -> None:
    assert {path.stem for path in FOLDER.glob("*.png")} == set(SHOTS), "run python docs/screenshots.py"
    shown = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert [name for name in SHOTS if f"images/{name}.png" not in shown] == []
