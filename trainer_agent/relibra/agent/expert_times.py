"""How long a job's experts compute, by which plans weigh tokens and copies: measured once, before the first step."""

import logging
from collections.abc import Callable, Mapping
from math import inf, isfinite
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from relibra.agent.experts import Experts
from relibra.agent.transport.lost_ranks import noticing_death
from relibra.agent.transport.speed import fastest_s

log = logging.getLogger(__name__)

_FEWEST_TOKENS, _MOST_TOKENS = 1024, 65536
_MOST_BYTES = 512 << 20
_RESOLVED = 1.8
"""Twice the tokens must take this much longer; otherwise the time is that of the host, which launches kernels."""


class ExpertTimes(NamedTuple):
    """The forward of a rank's experts in us, on the slowest rank; None for what could not be measured."""

    us_per_token: float | None = None
    fixed_us: float | None = None
    """What one more expert with tokens adds, as it reads its weights."""


def measure_experts(
    experts: Mapping[int, Experts],
    gathered: Mapping[int, Callable[[], None]],
    everyone: dist.ProcessGroup,
    device: torch.device,
) -> ExpertTimes:
    """Collective over all ranks, outside of steps: measure the experts of the first layer by their own forward.

    A rank without MoE layers leaves the answer to the others. Products in fp8 are not measured, because megatron
    chooses them outside of the experts.

    Raises:
        RelibraError: a peer is gone.
    """
    mine = (0.0, 0.0)  # on a pipeline stage without MoE layers
    if experts:
        with noticing_death("gathering the weights of experts, to measure how fast they are"):
            gathered.get(min(experts), lambda: None)()  # collective, so before anything that may fail on one rank
        try:
            measured = _measured(experts[min(experts)], device)
        except Exception as error:  # such as too little memory: the peers wait, and a job goes on without the times
            log.warning("relibra could not measure how fast experts are: %s: %s", type(error).__name__, error)
            measured = ExpertTimes()
        mine = (measured.us_per_token or inf, inf if measured.fixed_us is None else measured.fixed_us)
    slowest = torch.tensor(mine, dtype=torch.float64)
    with noticing_death("measuring how fast experts are"):
        dist.all_reduce(slowest, dist.ReduceOp.MAX, group=everyone)
    per_token, fixed = (us if isfinite(us) else None for us in slowest.tolist())
    return ExpertTimes(per_token, fixed) if per_token else ExpertTimes()


def fit(lasted_s: Callable[[int, int], float], num_experts: int, most_tokens: int) -> ExpertTimes:
    """Return the times of experts, from the times of their forwards.

    Tokens are doubled until time grows with them.

    Args:
        lasted_s: returns how long a forward takes, by its tokens and the number of experts that share them.
        num_experts: the experts of this rank.
        most_tokens: of a forward.
    """
    tokens, few_s = _FEWEST_TOKENS, lasted_s(_FEWEST_TOKENS, 1)
    while (twice := 2 * tokens) <= most_tokens:
        many_s = lasted_s(twice, 1)
        if many_s >= _RESOLVED * few_s:
            others = num_experts - 1
            fixed_us = max(lasted_s(twice, num_experts) - many_s, 0.0) * 1e6 / others if others else None
            return ExpertTimes((many_s - few_s) * 1e6 / tokens, fixed_us)
        tokens, few_s = twice, many_s
    return ExpertTimes()


def _measured(experts: Experts, device: torch.device) -> ExpertTimes:
    module: Any = experts.module
    config, num_experts, dtype = module.config, experts.num_home_slots, experts.parameters[0][0].dtype
    if config.fp8:
        return ExpertTimes()
    hidden_size = int(getattr(config, "moe_latent_size", None) or config.hidden_size)
    most_tokens = min(_MOST_TOKENS, _MOST_BYTES // (hidden_size * dtype.itemsize))

    generator = torch.Generator(device).manual_seed(0)  # leaves the training's random numbers alone

    def lasted_s(num_tokens: int, num_busy: int) -> float:
        tokens = torch.randn(num_tokens, hidden_size, dtype=dtype, device=device, generator=generator)
        probs = torch.ones(num_tokens, device=device)
        tokens_per_expert = torch.zeros(num_experts, dtype=torch.int64)
        tokens_per_expert[:num_busy] = num_tokens // num_busy
        tokens_per_expert[0] += num_tokens % num_busy
        return fastest_s(lambda: module.forward(tokens, tokens_per_expert, probs), device)

    with torch.no_grad():
        return fit(lasted_s, num_experts, most_tokens)
