"""The attributes of slime and miles that the plug-in relies on are there: in saved signatures, and in a checkout."""

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness import frameworks
from harness.signatures import FRAMEWORKS, SAVED, read, stand_in
from relibra.errors import InvalidInput, Unsupported
from relibra.plugins.points import check_points
from relibra.plugins.slime.framework import MILES, SLIME

NAMES = sorted(FRAMEWORKS)


@pytest.mark.parametrize("name", NAMES)
def test_the_saved_signatures_have_all_that_the_plugin_relies_on(name: str) -> None:
    saved = json.loads(SAVED.read_text())[name]
    framework = FRAMEWORKS[name]
    assert framework.version.split()[1] == saved["commit"][:7]
    assert framework.points.keys() == saved["modules"].keys()
    for module, points in framework.points.items():
        code = stand_in(module, saved["modules"][module])
        check_points(code, points, version=framework.version, without="--custom-megatron-init-path")


@pytest.mark.parametrize("name", NAMES)
def test_a_checkout_has_the_saved_signatures(name: str) -> None:
    checkout = frameworks.checkout(name)
    if checkout is None:
        pytest.skip(frameworks.reason(name))
    assert read(checkout, FRAMEWORKS[name]) == json.loads(SAVED.read_text())[name]["modules"]


@pytest.mark.parametrize("name", NAMES)
def test_the_patch_for_upstream_applies_to_a_checkout(name: str) -> None:
    checkout = frameworks.checkout(name)
    if checkout is None:
        pytest.skip(frameworks.reason(name))
    patch = Path(__file__).parents[3] / "docs" / "integrations" / "upstream" / f"{name}.patch"
    subprocess.run(["git", "apply", "--check", str(patch)], cwd=checkout, check=True)


def of_miles(**options: Any) -> SimpleNamespace:
    taken = {"use_rollout_routing_replay": True, "qkv_format": "thd", "colocate": True}
    return SimpleNamespace(**(taken | options))


def test_miles_is_refused_by_the_name_of_each_option() -> None:
    MILES.check(of_miles())
    options = {"qkv_format": "bshd", "indep_dp": True, "lora_rank": 8}
    options |= {"rematerialize_param_from_master_weight": True, "colocate": False, "update_weight_transfer_mode": "p2p"}
    with pytest.raises(Unsupported) as raised:
        MILES.check(of_miles(**options))
    for flag in (
        "--qkv-format bshd",
        "--indep-dp",
        "--rematerialize",
        "--lora-rank",
        "--update-weight-transfer-mode p2p",
    ):
        assert flag in str(raised.value)


@pytest.mark.parametrize("framework", [SLIME, MILES])
def test_routing_must_be_replayed_from_the_rollout(framework: Any) -> None:
    with pytest.raises(InvalidInput, match="--use-rollout-routing-replay: expected this flag"):
        framework.check(of_miles(use_rollout_routing_replay=False))
