"""What a token costs that crosses nodes; only with a price does a planner let sequences start near their experts."""

from dataclasses import replace

from relibra.planning import CostModel, Model, PlanParams

_BYTES_PER_ELEMENT = 2
"""The size of a bf16 number. Megatron dispatches tokens, and combines their results, in bf16."""


def price_dispatch(model: Model, hidden_size: int, dispatcher: str) -> PlanParams:
    """Return how to plan a job by the time of experts and dispatch, with the speeds of H100-class nodes.

    Args:
        model: the model, with the sizes of its experts.
        hidden_size: the elements of a token.
        dispatcher: megatron's `moe_token_dispatcher_type`.
    """
    there_and_back = 2 * hidden_size * _BYTES_PER_ELEMENT
    cost = CostModel.of_expert(model.expert_weight_size_bytes, token_size_bytes=there_and_back)
    return PlanParams(cost=replace(cost, sends_once_per_node=dispatcher == "flex"))
