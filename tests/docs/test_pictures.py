"""Pictures are what their script draws, and load nothing."""

import xml.etree.ElementTree as ET

import pytest

from docs.pictures import FOLDER, PICTURES
from harness.doc_blocks import PAGES


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_what_its_script_draws_and_is_shown(name):
    drawn = PICTURES[name]().svg()
    assert (FOLDER / f"{name}.svg").read_text(encoding="utf-8") == drawn, "run python docs/pictures.py"
    assert {each.tag.rpartition("}")[2] for each in ET.fromstring(drawn).iter()} <= {
        *("svg", "title", "style", "rect", "text", "line", "polyline", "polygon"),
    }
    assert "url(" not in drawn
    assert any(f"{name}.svg" in page.read_text(encoding="utf-8") for page in PAGES)
