import json
from importlib.metadata import version

import pytest

from harness.robustness.world import is_serving
from harness.services import Service, eventually
from relibra.cli.checks import megatron


@pytest.fixture(autouse=True)
def without_megatron(monkeypatch):
    """Leave out the check of megatron-core, which has tests of its own: it takes seconds to import."""
    monkeypatch.setattr(megatron, "examine", list)


def test_running_services_pass_with_this_version(relibra, watched, tmp_path):
    planner = Service("planner", watched.redis_url, tmp_path)
    try:
        eventually(lambda: is_serving(planner))
        said = relibra("doctor", "--redis-url", watched.redis_url, "--planner", planner.address, "--json")
    finally:
        planner.stop()
    found = {each["subject"]: each for each in json.loads(said)}
    for subject, reason in (
        ("redis", "responds, version "),
        ("redis: eviction", "keys are never evicted"),
        ("planner", f"{planner.address} serves"),
        ("planner: version", f"relibra {version('relibra')}"),
        ("status", f"{watched.url} responds, relibra {version('relibra')}"),
        ("versions", f"relibra {version('relibra')}"),
    ):
        assert found[subject]["verdict"] == "ok", found[subject]
        assert found[subject]["reason"].startswith(reason)
    assert "versions: wire" not in found  # this finding only appears if the wire contract cannot be loaded


def test_an_unreachable_planner_fails_with_a_fix(relibra):
    said = relibra("doctor", "--planner", "127.0.0.1:1", "--json", status=1)
    (planner,) = [each for each in json.loads(said) if each["subject"].startswith("planner")]
    assert planner["verdict"] == "failed"
    assert "relibra planner" in planner["fix"]


def test_S6_a_status_service_without_a_token_fails_with_a_fix(relibra, watched, tmp_path):
    arguments = tmp_path / "arguments.txt"
    arguments.write_text("--fp8-format hybrid")
    printed = relibra("doctor", "--recipe", arguments, status=1, RELIBRA_TOKEN="")
    assert "failed  status: access" in printed
    assert "set RELIBRA_TOKEN to a token with role viewer" in printed
    assert "fix: use fp8_recipe='blockwise', 'tensorwise' or 'mxfp8'" in printed
