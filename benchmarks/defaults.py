"""What a plug-in's job gets by default, beside the plan that is evaluated: throughput as a share of perfect balance.

    python -m benchmarks.defaults

For every model, EP size and dispatcher of the presets on H100, `evaluated` is planned as docs/evaluation.md says, and
`default` as the plug-in builds a job of this model: `plan_params` reads megatron's configuration and the name of the
GPU, and finds out what prices the planner gets and whether homes move. `difference` is in points.

Writes `results/defaults.json`.
"""

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

from benchmarks import results
from benchmarks.evaluation.cases import DISPATCHERS, question
from relibra.evaluation.model_presets import MODELS
from relibra.evaluation.policies import POLICIES, Decision, Situation, with_slots
from relibra.evaluation.question import Question
from relibra.evaluation.simulation import simulate
from relibra.planning import PlanParams
from relibra.planning.machines.dispatcher import Dispatcher
from relibra.plugins.plan_params import plan_params
from relibra.plugins.settings import PluginSettings
from relibra.plugins.slots import slots_that_fit

MOST_POINTS = 0.5
"""How far a default job may be below the evaluated plan."""
_GPU, _FREE_BYTES = "NVIDIA H100 80GB HBM3", 40 << 30
_SETTINGS = PluginSettings(planner="planner:7420", job="default")


def presets() -> Iterator[tuple[str, int, Dispatcher]]:
    """Yield model, EP size and dispatcher, those that are planned fastest first."""
    sizes = [(shape, ep) for shape in MODELS.values() for ep in (8, 16, 32) if shape.num_experts % ep == 0]
    sizes.sort(key=lambda size: size[0].num_layers * size[0].num_experts * size[1])
    yield from ((shape.name, ep, dispatcher) for shape, ep in sizes for dispatcher in DISPATCHERS)


def default_params(asked: Question) -> tuple[PlanParams, int]:
    """Return how the job of a question is planned by default, and the redundant slots that its ranks get."""
    shape = asked.model
    slots, _ = slots_that_fit(shape.expert_weight_size_bytes, asked.cluster.gpus_per_node, _FREE_BYTES)
    cluster = replace(asked.cluster, redundant_slots=slots)
    config = SimpleNamespace(
        hidden_size=shape.hidden_size,
        moe_token_dispatcher_type="alltoall" if asked.dispatcher is Dispatcher.ALLTOALL else "flex",
        moe_flex_dispatcher_backend=asked.dispatcher.value,
    )
    params, _ = plan_params(_SETTINGS, shape.model(), cluster, config, _GPU)
    return params, slots


def measure(model: str, ep: int, dispatcher: Dispatcher) -> dict[str, object]:
    """Return the shares of perfect balance of a preset's evaluated and default plan, and the difference in points."""
    asked = question(model, ep, dispatcher=dispatcher)
    params, slots = default_params(asked)
    before, now = asked.steps(seed=0)

    def plan(situation: Situation) -> Decision:
        return POLICIES["relibra"](replace(situation, params=params))

    others = {"default": with_slots(plan, slots)}
    evaluated, default = simulate(now, before, asked.training, ["relibra"], others=others)
    share, of_default = evaluated.of_balanced.mid, default.of_balanced.mid
    return {
        "model": model,
        "ep": ep,
        "dispatcher": dispatcher.value,
        "slots": slots,
        "evaluated": share,
        "default": of_default,
        "difference": 100 * (of_default - share),
    }


def main() -> None:
    """Measure all presets, print the table and write the results."""
    rows = [measure(*preset) for preset in presets()]
    results.show("share of perfect balance", rows)
    results.write("defaults", rows, gpu=_GPU)
    worst = min(float(str(row["difference"])) for row in rows)
    if worst < -MOST_POINTS:
        raise SystemExit(f"a default job is {-worst:.2f} points below the evaluated plan; at most {MOST_POINTS}")


if __name__ == "__main__":
    main()
