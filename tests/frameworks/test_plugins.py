"""The plug-ins inside the frameworks themselves, beside the frameworks alone; ranks act and assert in the harness."""

import re
from pathlib import Path
from typing import Any

import pytest

from harness.framework_runs import FrameworkRun

HARNESS = Path(__file__).parents[1] / "harness"


def scenarios_of(*modules: str) -> list[str]:
    """Return the names of the scenarios of modules of the harness, which only import beside their framework."""
    names = list[str]()
    for module in modules:
        text = (HARNESS / f"{module}.py").read_text()
        found = re.search(r"^SCENARIOS = named\((.*?)\)$", text, re.DOTALL | re.MULTILINE)
        assert found is not None, module
        names += [name.strip().rpartition(".")[2] for name in found[1].split(",") if name.strip()]
    return names


@pytest.mark.parametrize("scenario", scenarios_of("verl/scenarios", "verl/layouts", "verl/packed"))
def test_S5_L1_the_plug_in_of_verl(verl_engines: FrameworkRun, scenario: str) -> None:
    verl_engines.of(scenario)


@pytest.mark.parametrize("scenario", scenarios_of("skyrl/scenarios"))
def test_S5_L1_the_plug_in_of_skyrl(skyrl_workers: FrameworkRun, scenario: str) -> None:
    skyrl_workers.of(scenario)


@pytest.mark.parametrize("scenario", scenarios_of("areal/scenarios"))
def test_S5_L1_the_plug_in_of_areal(areal_engines: FrameworkRun, scenario: str) -> None:
    areal_engines.of(scenario)


@pytest.mark.parametrize("scenario", scenarios_of("ms_swift/scenarios"))
def test_S5_S9_L1_the_plug_in_of_ms_swift(ms_swift_trainers: FrameworkRun, scenario: str) -> None:
    ms_swift_trainers.of(scenario)


@pytest.mark.parametrize("scenario", scenarios_of("nemo_rl/scenarios"))
def test_S5_S9_L1_the_plug_in_of_nemo_rl(nemo_rl_workers: FrameworkRun, scenario: str) -> None:
    nemo_rl_workers.of(scenario)


@pytest.mark.parametrize("scenario", scenarios_of("bridge/scenarios"))
def test_S5_S9_lora_of_megatron_bridge(bridge_ranks: FrameworkRun, scenario: str) -> None:
    bridge_ranks.of(scenario)


@pytest.mark.parametrize("scenario", scenarios_of("roll/scenarios"))
def test_S5_S9_L1_the_plug_in_of_roll(roll_workers: FrameworkRun, scenario: str) -> None:
    roll_workers.of(scenario)


def test_S9_the_log_of_verl_says_once_what_happened(verl_engines: FrameworkRun) -> None:
    check_log(verl_engines)
    assert "relibra chooses the data-parallel ranks of sequences of job verl-packed" in verl_engines.log
    # Each of four engines says so, and the trainer.
    assert verl_engines.log.count("relibra plans no pass that verl's decoupled trainer runs") == 4
    assert verl_engines.log.count("verl chose: the planner is away, or has lost the job") == 1


def test_S9_the_log_of_skyrl_says_once_what_happened(skyrl_workers: FrameworkRun) -> None:
    check_log(skyrl_workers)


def test_S9_the_log_of_areal_says_once_what_happened(areal_engines: FrameworkRun) -> None:
    check_log(areal_engines)
    assert "relibra leaves the teacher as it is" in areal_engines.log


def test_S9_the_log_of_ms_swift_says_once_what_happened(ms_swift_trainers: FrameworkRun) -> None:
    check_log(ms_swift_trainers)


def test_S9_the_log_of_nemo_rl_says_once_what_happened(nemo_rl_workers: FrameworkRun) -> None:
    check_log(nemo_rl_workers)
    assert nemo_rl_workers.log.count("relibra plans no pass of a policy worker without an optimizer") == 1


def test_S9_the_log_of_roll_says_once_what_happened(roll_workers: FrameworkRun) -> None:
    check_log(roll_workers)


def check_log(run: FrameworkRun) -> None:
    """Check that a planner that is away was named once, and that the framework is what the plug-in knows."""
    assert run.log.count("job away trains without plans") == 1
    assert "has parameters since then" not in run.log


def test_an_interrupted_rollout_of_areal_has_the_routes_of_its_last_request(areal_interrupted: dict[str, Any]) -> None:
    result = areal_interrupted
    assert result["num_requests"] == 4
    assert result["num_tokens"] == 4 + 3 + 2 + 4
    assert result["num_missing"] == 1
    # AReaL concatenates the rows of all three requests that generated tokens.
    assert result["num_rows"] == 6 + 8 + 12
    assert result["routed"] == result["last_request"]
