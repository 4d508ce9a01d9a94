"""The kept loads are those that a planner makes: the same tokens, spread better."""

from benchmarks.gpu import loads
from benchmarks.gpu.experts import PRESETS


def test_kept_loads_are_balanced_by_the_plan() -> None:
    kept = loads.read()
    assert kept.keys() == loads.NUM_EXPERTS.keys() <= PRESETS.keys()
    mean = loads.TOKENS_PER_RANK * loads.TOP_K
    for preset, num_experts in loads.NUM_EXPERTS.items():
        plain, planned, equal = (sum(kept[preset][kind]) for kind in ("plain", "planned", "equal"))
        assert equal == mean
        assert mean <= planned < 1.05 * mean < plain
        assert len(kept[preset]["plain"]) == num_experts // loads.NUM_RANKS
        assert len(kept[preset]["planned"]) <= num_experts // loads.NUM_RANKS + loads.SLOTS


def test_they_can_be_made_again() -> None:
    assert loads.loads_of(32, seed=1)["equal"] == [16384] * 4
