"""The pages under axe-core: no serious obstacle for people who use a screen reader or the keyboard."""

from typing import Any

import pytest
from playwright.sync_api import Page

from harness.pages import PAGES, wait_for_charts
from harness.watched_job import WatchedJob

axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")

pytestmark = pytest.mark.integration


def obstacles(page: Page, **options: Any) -> list[dict[str, Any]]:
    """Return the serious and critical findings of axe-core on a page."""
    found = axe.Axe().run(page, options={"resultTypes": ["violations"], **options}).response["violations"]
    return [each for each in found if each["impact"] in ("serious", "critical")]


@pytest.mark.long
def test_an_obstacle_is_found(page: Page) -> None:
    page.set_content("<html lang='en'><title>x</title><main><h1>x</h1><img src='x.png'></main></html>")
    assert [each["id"] for each in obstacles(page)] == ["image-alt"]


@pytest.mark.long
def test_no_page_has_an_obstacle(page: Page, job: WatchedJob) -> None:
    page.set_viewport_size({"width": 390, "height": 844})  # a phone, on which tables scroll
    found = {}
    for path in PAGES:
        page.goto(path)
        wait_for_charts(page)
        page.emulate_media(color_scheme="light")
        seen = obstacles(page)
        page.emulate_media(color_scheme="dark")
        for each in [*seen, *obstacles(page, runOnly=["color-contrast"])]:
            found[path, each["id"]] = [node["html"] for node in each["nodes"]]
    assert found == {}
