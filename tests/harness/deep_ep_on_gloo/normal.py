"""DeepEP's `Buffer` for training. The names of arguments and results are those of the package.

Tokens are received in the order of their ranks, and in their order there. A received token has the same K places as
where it came from; a place of another rank's expert has index -1 and weight 0.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from harness.deep_ep_on_gloo.exchange import Exchange

NUM_MAX_LOCAL_EXPERTS = 1024
NUM_MAX_TOPK = 32
NUM_RANKS = (2, 4, 8, 16, 24, 32, 64, 128, 144, 160)


class EventHandle:
    """An event on a GPU's stream. On a CPU it has always happened."""

    def current_stream_wait(self) -> None: ...


@dataclass
class EventOverlap:
    """What DeepEP gives and takes to order its kernels."""

    event: EventHandle | None = None

    def current_stream_wait(self) -> None:
        assert self.event is not None
        self.event.current_stream_wait()


class Config:
    """The tuning of kernels; here only for the sizes of buffers."""

    def get_nvl_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        return 128 * hidden_bytes * num_ranks

    def get_rdma_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        return 0


class Buffer:
    """See `deep_ep.Buffer`."""

    num_sms = 20

    def __init__(self, group: dist.ProcessGroup, num_nvl_bytes: int = 0, num_rdma_bytes: int = 0) -> None:
        self.group, self.rank, self.group_size = group, group.rank(), group.size()
        self.num_nvl_bytes, self.num_rdma_bytes = num_nvl_bytes, num_rdma_bytes

    @staticmethod
    def set_num_sms(new_num_sms: int) -> None:
        assert new_num_sms % 2 == 0, "The SM count must be even"
        Buffer.num_sms = new_num_sms

    @staticmethod
    def get_dispatch_config(num_ranks: int) -> Config:
        assert num_ranks in NUM_RANKS, f"Unsupported number of EP ranks: {num_ranks}"
        return Config()

    get_combine_config = get_dispatch_config

    def get_dispatch_layout(
        self,
        topk_idx: Tensor,
        num_experts: int,
        previous_event: EventOverlap | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Tensor, None, Tensor, Tensor, EventOverlap]:
        _check_events(previous_event, async_finish, allocate_on_comm_stream)
        assert topk_idx.dtype == torch.int64
        assert topk_idx.dim() == 2
        assert topk_idx.is_contiguous()
        assert num_experts % self.group_size == 0
        assert topk_idx.shape[1] <= NUM_MAX_TOPK
        assert bool(((topk_idx >= -1) & (topk_idx < num_experts)).all())
        mask_TE = torch.zeros(len(topk_idx), num_experts + 1, dtype=torch.int32)
        mask_TE.scatter_add_(1, topk_idx.where(topk_idx >= 0, num_experts), torch.ones_like(topk_idx).int())
        mask_TE = mask_TE[:, :num_experts]
        assert bool((mask_TE <= 1).all()), "a token may have an expert only once"
        is_token_in_rank = mask_TE.view(len(topk_idx), self.group_size, -1).bool().any(dim=-1)
        return (
            is_token_in_rank.sum(dim=0, dtype=torch.int32),
            None,
            mask_TE.sum(dim=0, dtype=torch.int32),
            is_token_in_rank,
            EventOverlap(EventHandle()),
        )

    def dispatch(
        self,
        x: Tensor,
        handle: tuple[Any, ...] | None = None,
        num_tokens_per_rank: Tensor | None = None,
        num_tokens_per_rdma_rank: Tensor | None = None,
        is_token_in_rank: Tensor | None = None,
        num_tokens_per_expert: Tensor | None = None,
        topk_idx: Tensor | None = None,
        topk_weights: Tensor | None = None,
        previous_event: EventOverlap | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Tensor, Tensor | None, Tensor | None, list[int] | None, tuple[Any, ...] | None, EventOverlap]:
        _check_events(previous_event, async_finish, allocate_on_comm_stream)
        _check_tokens(x)
        event = EventOverlap(EventHandle())
        if handle is not None:
            assert topk_idx is None
            assert topk_weights is None
            return self._exchange(handle).there(x), None, None, None, None, event
        assert num_tokens_per_rank is not None
        assert num_tokens_per_rdma_rank is None
        assert is_token_in_rank is not None
        assert num_tokens_per_expert is not None
        assert topk_idx is not None
        assert topk_weights is not None
        assert topk_weights.dtype == torch.float32
        assert topk_weights.is_contiguous()
        assert topk_idx.shape == topk_weights.shape
        assert len(topk_idx) == len(x) == len(is_token_in_rank)
        num_local = len(num_tokens_per_expert) // self.group_size
        assert num_local <= NUM_MAX_LOCAL_EXPERTS
        exchange = Exchange.of(self.group, is_token_in_rank)
        received_idx = exchange.there(topk_idx) - self.rank * num_local
        is_local = (received_idx >= 0) & (received_idx < num_local)
        received_idx = received_idx.masked_fill(~is_local, -1)
        received_weights = exchange.there(topk_weights).masked_fill(~is_local, 0.0)
        per_expert = torch.bincount(received_idx[is_local], minlength=num_local).tolist()
        prefix_RR = exchange.num_sent_RR.cumsum(dim=0).int()
        source = exchange.there(torch.arange(len(x), dtype=torch.int32))
        # The middle entries and the last one order the channels of the kernels, which the stand-in does not have.
        made = (prefix_RR, None, None, source, is_token_in_rank, None)
        return exchange.there(x), received_idx, received_weights, per_expert, made, event

    def combine(
        self,
        x: Tensor,
        handle: tuple[Any, ...],
        topk_weights: Tensor | None = None,
        previous_event: EventOverlap | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Tensor, Tensor | None, EventOverlap]:
        _check_events(previous_event, async_finish, allocate_on_comm_stream)
        _check_tokens(x)
        assert len(x) == len(handle[3])
        exchange = self._exchange(handle)
        weights = None
        if topk_weights is not None:
            assert topk_weights.dtype == torch.float32
            assert len(topk_weights) == len(x)
            weights = exchange.back(topk_weights)
        return exchange.back(x), weights, EventOverlap(EventHandle())

    def _exchange(self, handle: tuple[Any, ...]) -> Exchange:
        prefix_RR, is_token_in_rank = handle[0].long(), handle[4]
        num_sent_RR = prefix_RR.diff(dim=0, prepend=torch.zeros_like(prefix_RR[:1]))
        return Exchange(group=self.group, is_token_in_rank_TR=is_token_in_rank, num_sent_RR=num_sent_RR)


def _check_events(previous: EventOverlap | None, async_finish: bool, allocate_on_comm_stream: bool) -> None:
    if allocate_on_comm_stream:
        assert previous is not None
        assert previous.event is not None
        assert async_finish


def _check_tokens(x: Tensor) -> None:
    assert x.dim() == 2
    assert x.is_contiguous()
    assert x.dtype in (torch.bfloat16, torch.float32)
    assert x.shape[1] * x.element_size() % 16 == 0
