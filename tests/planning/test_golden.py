import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

_UPDATE = Path(__file__).parents[1] / "golden" / "update.py"
_HINT = "plans changed; if that is intended, run `python tests/golden/update.py` and judge its diff"


@pytest.fixture(scope="module")
def golden():
    spec = importlib.util.spec_from_file_location("relibra_golden_update", _UPDATE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pinned(golden):
    return json.loads(golden.PLANS_FILE.read_text())


@pytest.mark.parametrize("num_threads", [1, 3])
def test_S8_plans_of_a_synthetic_step_are_pinned_for_any_number_of_threads(golden, pinned, num_threads):
    for name, plan in golden.synthetic_plans(num_threads):
        assert golden.entry(plan) == pinned[name], f"{name}: {_HINT}"


@pytest.mark.traces
@pytest.mark.parametrize("name", ["gpt-oss-20b_mmlu", "deepseek-v2-lite_esft"])
def test_S8_plans_of_real_routing_are_pinned(golden, pinned, traces_dir, name):
    for case, plan in golden.trace_plans(traces_dir, name):
        assert golden.entry(plan) == pinned[case], f"{case}: {_HINT}"


@pytest.mark.parametrize("environment", [{"PYTHONHASHSEED": "1"}, {"PYTHONHASHSEED": "2", "OMP_NUM_THREADS": "1"}])
def test_S8_other_processes_make_the_same_plans(pinned, environment):
    printed = subprocess.run(
        [sys.executable, str(_UPDATE), "--print"],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    digests = json.loads(printed)
    assert digests
    assert all(digest == pinned[name]["digest"] for name, digest in digests.items()), _HINT


def test_every_pinned_plan_is_a_case(golden, pinned):
    of_traces = {f"{name} {num_nodes}x8" for name in golden.TRACES for num_nodes in golden.SEEDS}
    assert set(pinned) == of_traces | {name for name, _ in golden.synthetic_plans()}
