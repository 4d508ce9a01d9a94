"""Which scenarios of which layouts run on a CUDA device; all others run on the CPU only.

The others use stand-ins for Transformer Engine, for memory of the host or for DeepEP, start services, kill ranks, or
compare files that ranks on a CPU write. This module imports neither torch nor megatron, so that tests can read it.
"""

from collections.abc import Iterable, Mapping

from harness.distributed.ways import pairs, ways
from harness.distributed.ways_to_join import Way

_NEUTRALITY = (
    "sgd",
    "sgd_symmetric",
    "reorder_only",
    "reorder_only_bf16",
    "no_gradient_return",
    "no_moments_moved",
    "fallbacks",
    "both_phases",
    "both_phases_host_copy",
    "both_phases_symmetric_host_copy",
)
_SHARDED = ("sgd", "sharded_bf16_reorder_only", "sharded_stay", "sharded_no_wait", "sharded_no_moments_moved")
_EXPERTS = tuple(
    f"{experts}-{way}" for experts in ("grouped", "fused", "grouped_fused") for way in ("none-plain", "full-sharded")
)


def _ways(layout: str) -> tuple[str, ...]:
    """Return the scenarios that compare training in every way of a layout, and what bf16 is compared with."""
    rounding = (f"rounding-{optimizer}" for optimizer, dtype in pairs(layout) if dtype == "bf16")
    return (*ways(layout, "fp32"), *ways(layout, "bf16"), *rounding)


SCENARIOS: dict[str, tuple[str, ...]] = {
    "two_nodes": _NEUTRALITY,
    "two_groups": _SHARDED,
    "gpt_ep4": _ways("gpt_ep4"),
    "gpt_ep2_edp2": _ways("gpt_ep2_edp2"),
    "gpt_experts": (*_EXPERTS, "grouped_fused-full-sharded-bf16", "grouped_fused-rounding"),
    "hot_path": ("hot_path",),
}
"""The scenarios of each layout."""
_OVER_GLOO = ("two_nodes", "gpt_ep4", "hot_path")
"""The layouts without a distributed optimizer, whose collectives gloo does not have for CUDA tensors."""


def check(layouts: Mapping[str, Iterable[str]]) -> None:
    """Check that the table names only what exists.

    Args:
        layouts: the scenarios of all layouts.

    Raises:
        ValueError: it names something else, such as a scenario that was renamed.
    """
    unknown = [layout for layout in SCENARIOS if layout not in layouts]
    for layout in SCENARIOS.keys() - unknown:
        unknown += [f"{layout}/{each}" for each in SCENARIOS[layout] if each not in layouts[layout]]
    if unknown:
        raise ValueError(f"expected scenarios of layouts in harness.distributed.on_cuda, got {', '.join(unknown)}")


def chosen(way: Way, layout: str, scenarios: Iterable[str]) -> list[str]:
    """Return those of the scenarios of a layout that run this way."""
    return [each for each in scenarios if refusal(way, layout, each) is None]


def refusal(way: Way, layout: str, scenario: str) -> str | None:
    """Return why a scenario does not run this way, or None if it does."""
    if way is Way.CPU:
        return None
    if scenario not in SCENARIOS.get(layout, ()):
        return f"{scenario} of {layout} runs on the CPU only: harness.distributed.on_cuda does not name it"
    if way is Way.GLOO and layout not in _OVER_GLOO:
        return f"{layout} needs NCCL: gloo does not reduce or gather shards that are CUDA tensors"
    return None
