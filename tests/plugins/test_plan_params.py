"""How a job of a plug-in is planned by default: with whose prices, and whether its experts move."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from relibra.agent.expert_times import ExpertTimes
from relibra.agent.link_rates import LinkRates
from relibra.evaluation.model_presets import MODELS
from relibra.evaluation.training import Training
from relibra.planning import Cluster, CostModel, PlanParams
from relibra.planning.machines.dispatcher import Dispatcher
from relibra.planning.machines.hardware import HARDWARE
from relibra.plugins.plan_params import dispatcher_of, homes_stay, plan_params
from relibra.plugins.settings import PluginSettings

SETTINGS = PluginSettings(planner="planner:7420", job="job")
SHAPE = MODELS["qwen3-30b-a3b"]
TWO_NODES = Cluster(num_nodes=2, gpus_per_node=8, redundant_slots=2)
ALLTOALL = SimpleNamespace(hidden_size=SHAPE.hidden_size, moe_token_dispatcher_type="alltoall")


def planned(
    settings: PluginSettings = SETTINGS, gpu: str | None = "NVIDIA H100 80GB HBM3", **config: Any
) -> PlanParams:
    of_megatron = SimpleNamespace(**(vars(ALLTOALL) | config))
    return plan_params(settings, SHAPE.model(), TWO_NODES, of_megatron, gpu)[0]


@pytest.mark.parametrize(
    ("dispatcher", "config"),
    [
        (Dispatcher.ALLTOALL, {"moe_token_dispatcher_type": "alltoall"}),
        (Dispatcher.ALLTOALL, {"moe_token_dispatcher_type": "allgather"}),
        (Dispatcher.DEEPEP, {"moe_token_dispatcher_type": "flex"}),
        (Dispatcher.DEEPEP, {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "deepep"}),
        (Dispatcher.HYBRIDEP, {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "hybridep"}),
    ],
)
@pytest.mark.parametrize(
    ("gpu", "machine"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA GB200", "gb200"),
        ("NVIDIA H20", "h100"),
    ],
)
def test_a_job_has_the_prices_of_the_evaluation(
    dispatcher: Dispatcher, config: dict[str, str], gpu: str, machine: str
) -> None:
    assert dispatcher_of(SimpleNamespace(**config)) is dispatcher
    evaluated = Training.of(SHAPE, HARDWARE[machine], TWO_NODES, dispatcher)
    assert planned(gpu=gpu, **config).cost == evaluated.planning_cost


def corrected(*measured: Any, **config: Any) -> tuple[CostModel, str]:
    of_megatron = SimpleNamespace(**(vars(ALLTOALL) | config))
    params, whose = plan_params(SETTINGS, SHAPE.model(), TWO_NODES, of_megatron, "NVIDIA H100", *measured)
    assert params.cost is not None
    return params.cost, whose


DEEPEP = {"moe_token_dispatcher_type": "flex"}


def test_links_have_the_rates_that_ranks_measured() -> None:
    cost, whose = corrected(LinkRates(inside=150e3, across=21e3))
    assert (cost.intra_node_bytes_per_us, cost.inter_node_bytes_per_us) == (150e3, 21e3)
    assert "with alltoall, 150 GB/s inside a node as measured, 21 GB/s of an all-to-all between nodes as mea" in whose
    assert corrected(LinkRates(inside=150e3, across=21e3), **DEEPEP)[0].intra_node_bytes_per_us == 150e3


@pytest.mark.parametrize(("alltoall", "peak"), [(9e3, 9e3 / 0.38), (21e3, 50e3), (60e3, 60e3 / 0.88)])
def test_a_dispatcher_that_was_not_measured_has_its_share_of_adapters_that_allow_the_measured_rate(
    alltoall: float, peak: float
) -> None:
    cost, _ = corrected(LinkRates(across=alltoall), **DEEPEP)
    assert cost.inter_node_bytes_per_us == pytest.approx(0.87 * peak)


def test_experts_have_the_times_that_ranks_measured() -> None:
    preset = corrected()[0]
    times = ExpertTimes(us_per_token=2 * preset.us_per_token, fixed_us=3 * preset.expert_us[0])
    cost, whose = corrected(LinkRates(), times)
    assert (cost.us_per_token, cost.expert_us[0]) == pytest.approx((times.us_per_token, times.fixed_us))
    assert "ns for a token of an expert as measured" in whose
    assert replace(cost, expert_us=preset.expert_us) == preset, "the other prices stay"
    assert corrected(LinkRates(), ExpertTimes(times.us_per_token))[0].expert_us[0] == preset.expert_us[0]


@pytest.mark.parametrize("off", [1 / 11, 11.0])
def test_S9_prices_far_from_those_of_the_preset_are_not_believed_and_the_log_says_so(off: float) -> None:
    preset = corrected()[0]
    links = LinkRates(preset.intra_node_bytes_per_us * off, preset.inter_node_bytes_per_us * off)
    cost, whose = corrected(links, ExpertTimes(preset.us_per_token * off, preset.expert_us[0] * off))
    assert cost == preset
    assert whose.count("as measured, which is not believed: the preset has") == 4


def test_the_user_names_the_machine_whose_speeds_count() -> None:
    assert planned(replace(SETTINGS, hardware="b200"), gpu=None) == planned(gpu="NVIDIA B200")


def test_experts_with_an_input_of_their_own_get_smaller_tokens() -> None:
    cost = planned(moe_latent_size=SHAPE.hidden_size // 2).cost
    assert cost is not None
    assert cost.token_size_bytes == SHAPE.hidden_size * 2


def test_S9_the_log_hears_whose_speeds_the_prices_are() -> None:
    def whose(gpu: str | None) -> str:
        return plan_params(SETTINGS, SHAPE.model(), TWO_NODES, ALLTOALL, gpu)[1]

    assert planned(gpu=None).cost is None
    assert whose(None).startswith("none, because ranks without GPUs have no speeds")
    said = "those of h200 nodes, by the name NVIDIA H200, dispatching with alltoall, the time of experts not measured"
    assert whose("NVIDIA H200") == said
    assert "because relibra knows no NVIDIA H20: set hardware to the nearest" in whose("NVIDIA H20")


@pytest.mark.parametrize(
    ("num_nodes", "slots", "reorder", "stay"),
    [
        (1, 2, "auto", True),
        (1, 0, "auto", False),
        (2, 2, "auto", False),
        (2, 2, "never", True),
        (1, 0, "never", True),
        (1, 2, "always", False),
    ],
)
def test_experts_move_only_where_copies_cannot_balance_alone(
    num_nodes: int, slots: int, reorder: str, stay: bool
) -> None:
    cluster = Cluster(num_nodes=num_nodes, gpus_per_node=8, redundant_slots=slots)
    assert homes_stay(replace(SETTINGS, reorder=reorder), cluster) is stay
    params, _ = plan_params(replace(SETTINGS, reorder=reorder), SHAPE.model(), cluster, ALLTOALL, None)
    assert params.homes_stay is stay
