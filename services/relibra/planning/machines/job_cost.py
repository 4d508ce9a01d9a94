"""The prices of a job on its machines: what a plug-in registers, and what the evaluation plans its presets with."""

from dataclasses import replace

from relibra.planning.cost import WEIGHT_TRANSFERS, CostModel
from relibra.planning.machines.constants import GRADIENT_BYTES_PER_WEIGHT_BYTE, Constants
from relibra.planning.machines.dispatcher import Dispatcher
from relibra.planning.machines.host_work import MEGATRON, RELIBRA, mean_us


def job_cost(
    constants: Constants,
    weight_size_bytes: int,
    token_size_bytes: float,
    dispatcher: Dispatcher,
    measured: CostModel | None = None,
) -> CostModel:
    """Return the times of experts, dispatch and transfers. What a transfer takes from attention counts as not hidden.

    Args:
        constants: those of the machines, with this dispatcher.
        weight_size_bytes: the bf16 weights of one expert.
        token_size_bytes: what dispatch and combine move together for a token, as a mean over the passes of a step.
        dispatcher: what sends tokens to experts.
        measured: the measured times of one expert; by default they are computed.
    """
    forwards = WEIGHT_TRANSFERS - GRADIENT_BYTES_PER_WEIGHT_BYTE
    taken = forwards * constants.weight_sm_share + constants.return_weights * constants.gradient_sm_share
    host_us, layer_host_us = mean_us(RELIBRA, constants), mean_us(MEGATRON, constants)
    if measured is not None and measured.host_us:
        host_us, layer_host_us = measured.host_us, measured.layer_host_us
    return replace(
        measured or _cost_by_sizes(weight_size_bytes, constants),
        token_size_bytes=token_size_bytes,
        intra_node_bytes_per_us=constants.weight_bytes_per_us,
        inter_node_bytes_per_us=constants.dispatch_across_bytes_per_us,
        hidden_transfer_share=max(0.0, 1 - taken / WEIGHT_TRANSFERS),
        host_us=host_us,
        layer_host_us=layer_host_us,
        sends_once_per_node=dispatcher.sends_once_per_node,
    )


def _cost_by_sizes(weight_size_bytes: int, constants: Constants) -> CostModel:
    """Return the times of one expert: it reads its weights once and computes every token. Planning ignores tiles."""
    read_us = weight_size_bytes / constants.hbm_bytes_per_us
    us_per_token = weight_size_bytes / constants.flop_per_us  # 2 FLOP a parameter of 2 bytes
    return CostModel(expert_tokens=(0.0, 1024.0), expert_us=(read_us, read_us + 1024 * us_per_token))
