"""The attributes of frameworks that plug-ins rely on are there: in saved signatures, and in a checkout."""

import json

import pytest

from harness import frameworks
from harness.signatures import FRAMEWORKS, SAVED, read, stand_in
from relibra.plugins.points import check_points

NAMES = sorted(FRAMEWORKS)


@pytest.mark.parametrize("name", NAMES)
def test_the_saved_signatures_are_those_that_the_plugin_relies_on(name: str, caplog: pytest.LogCaptureFixture) -> None:
    saved = json.loads(SAVED.read_text())[name]
    framework = FRAMEWORKS[name]
    assert framework.version.split()[-1] == saved["commit"][:7]
    assert framework.points.keys() == saved["modules"].keys()
    for module, points in framework.points.items():
        code = stand_in(module, saved["modules"][module])
        check_points(code, points, version=framework.version, without="relibra")
    assert "has parameters since then" not in caplog.text


@pytest.mark.parametrize("name", NAMES)
def test_a_checkout_has_the_saved_signatures(name: str) -> None:
    checkout = frameworks.checkout(name)
    if checkout is None:
        pytest.skip(frameworks.reason(name))
    assert read(checkout, FRAMEWORKS[name]) == json.loads(SAVED.read_text())[name]["modules"]
