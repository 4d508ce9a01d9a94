"""HybridEP's `HybridEPBuffer`. The names of arguments and results are those of the package.

Tokens are received sorted by local expert, and within an expert in the order of their ranks and their places there.
The buffer has room for a number of experts per rank. A dispatch with more of them makes it larger, on all ranks.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from harness.deep_ep_on_gloo.exchange import Exchange


@dataclass
class BufferConfig:
    """The size of the buffer."""

    hidden_dim: int
    max_num_of_tokens_per_rank: int
    num_of_experts_per_rank: int


class HybridEPBuffer:
    """See `deep_ep.HybridEPBuffer`; all ranks of `group` are in one NVLink domain."""

    def __init__(
        self,
        group: dist.ProcessGroup,
        hidden_dim: int,
        max_num_of_tokens_per_rank: int,
        num_local_experts: int,
        use_fp8: bool = False,
        num_sms_dispatch_api: int | None = None,
        num_sms_combine_api: int | None = None,
        num_sms_preprocessing_api: int | None = None,
        num_blocks_permute: int | None = None,
        num_blocks_unpermute: int | None = None,
    ) -> None:
        assert not use_fp8, "the stand-in does not dispatch fp8"
        self.group, self.rank, self.group_size = group, group.rank(), group.size()
        self.config = BufferConfig(hidden_dim, max_num_of_tokens_per_rank, num_local_experts)
        self.num_reallocations = 0

    def dispatch_with_permute(
        self,
        *,
        hidden: Tensor,
        num_of_experts_per_rank: int | None = None,
        routing_map: Tensor | None = None,
        probs: Tensor | None = None,
        scaling_factor: Tensor | None = None,
        num_permuted_tokens: int | Tensor | None = None,
        pad_multiple: int | None = None,
        handle: tuple[Any, ...] | None = None,
        non_blocking: bool = False,
    ) -> tuple[Tensor, Tensor | None, None, Tensor, tuple[Any, ...]]:
        assert scaling_factor is None
        assert not pad_multiple
        assert num_permuted_tokens is not None or not non_blocking, "without a number it waits for one"
        assert hidden.is_contiguous()
        assert hidden.dtype in (torch.bfloat16, torch.float32)
        if handle is None:
            assert routing_map is not None
            assert routing_map.dtype == torch.bool
            assert routing_map.is_contiguous()
            assert num_of_experts_per_rank is not None
            assert len(routing_map) == len(hidden)
            handle = self._preprocessed(hidden, routing_map, num_of_experts_per_rank)
        exchange, received_NE, tokens_per_expert, num_local, num_tokens = handle
        assert num_tokens == len(hidden), "This handle could be invalid."
        # As a CPU integer, the number only sizes the output, so that a dispatch need not wait for it.
        assert num_permuted_tokens is None or int(num_permuted_tokens) == int(tokens_per_expert.sum())
        expert_M, place_M = received_NE.T.nonzero(as_tuple=True)
        permuted_probs = None
        if probs is not None:
            assert probs.dtype == torch.float32
            assert probs.is_contiguous()
            own = slice(self.rank * num_local, (self.rank + 1) * num_local)
            permuted_probs = exchange.there(probs)[:, own][place_M, expert_M]
        return exchange.there(hidden)[place_M], permuted_probs, None, tokens_per_expert, handle

    def combine_with_unpermute(
        self, *, hidden: Tensor, probs: Tensor | None = None, handle: tuple[Any, ...], pad_multiple: int | None = None
    ) -> tuple[Tensor, Tensor | None]:
        assert not pad_multiple
        assert hidden.is_contiguous()
        assert hidden.dtype in (torch.bfloat16, torch.float32)
        exchange, received_NE, tokens_per_expert, num_local, _ = handle
        assert len(hidden) == int(tokens_per_expert.sum())
        expert_M, place_M = received_NE.T.nonzero(as_tuple=True)
        sums = torch.zeros(len(received_NE), hidden.shape[1], dtype=torch.float32)
        combined = exchange.back(sums.index_add_(0, place_M, hidden.float()).to(hidden.dtype))
        if probs is None:
            return combined, None
        assert probs.dtype == torch.float32
        assert probs.shape == (len(hidden),)
        spread = torch.zeros(len(received_NE), num_local * self.group_size)
        spread[place_M, self.rank * num_local + expert_M] = probs
        return combined, exchange.back(spread)

    def _preprocessed(self, hidden: Tensor, routing_map: Tensor, num_local: int) -> tuple[Any, ...]:
        num_tokens, num_experts = routing_map.shape
        assert num_experts == num_local * self.group_size
        assert num_experts % 4 == 0, "Invalid HybridEpConfigInstance"
        wanted = BufferConfig(
            max(self.config.hidden_dim, hidden.shape[1]),
            max(self.config.max_num_of_tokens_per_rank, (num_tokens + 15) // 16 * 16),
            max(self.config.num_of_experts_per_rank, num_local),
        )
        grew = torch.tensor([wanted != self.config, num_tokens, num_local])
        told = torch.empty(self.group_size * len(grew), dtype=torch.int64)
        dist.all_gather_into_tensor(told, grew, group=self.group)
        assert bool((told.view(-1, len(grew)) == grew).all()), (
            "the ranks' buffers, tokens or experts differ: kernels would hang"
        )
        self.num_reallocations += int(wanted != self.config)
        self.config = wanted
        exchange = Exchange.of(self.group, routing_map.view(num_tokens, self.group_size, num_local).any(dim=-1))
        own = slice(self.rank * num_local, (self.rank + 1) * num_local)
        received_NE = exchange.there(routing_map.to(torch.uint8))[:, own].bool()
        return exchange, received_NE, received_NE.sum(dim=0), num_local, num_tokens
