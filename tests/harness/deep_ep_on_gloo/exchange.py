"""The exchange below both stand-ins: a token goes once to each rank that has a slot for it, and comes back.

T tokens of this rank, R ranks, N received tokens, in the order of their ranks and then of their places there.
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """Which tokens go to which ranks."""

    group: dist.ProcessGroup
    is_token_in_rank_TR: Tensor
    num_sent_RR: Tensor
    """The number of tokens from each rank (first index) to each rank."""

    @classmethod
    def of(cls, group: dist.ProcessGroup, is_token_in_rank_TR: Tensor) -> "Exchange":
        """Collective: return the exchange."""
        num_sent = torch.empty(group.size() ** 2, dtype=torch.int64)
        dist.all_gather_into_tensor(num_sent, is_token_in_rank_TR.sum(dim=0), group=group)
        num_sent_RR = num_sent.view(group.size(), -1)
        return cls(group=group, is_token_in_rank_TR=is_token_in_rank_TR, num_sent_RR=num_sent_RR)

    @property
    def _sent_R(self) -> list[int]:
        return self.num_sent_RR[self.group.rank()].tolist()

    @property
    def _received_R(self) -> list[int]:
        return self.num_sent_RR[:, self.group.rank()].tolist()

    @property
    def _tokens(self) -> Tensor:
        """The places of the tokens that this rank sends, by rank."""
        return self.is_token_in_rank_TR.T.nonzero()[:, 1]

    def there(self, x_Tx: Tensor) -> Tensor:
        """Collective: return what this rank receives of all ranks' `x_Tx`, `[N, ...]`."""
        received = x_Tx.new_empty(sum(self._received_R), *x_Tx.shape[1:])
        sent = x_Tx.index_select(0, self._tokens)
        dist.all_to_all_single(received, sent, self._received_R, self._sent_R, group=self.group)
        return received

    def back(self, x_Nx: Tensor) -> Tensor:
        """Collective: return the sums over ranks of what came back of each token, `[T, ...]`, added up in fp32."""
        received = x_Nx.new_empty(sum(self._sent_R), *x_Nx.shape[1:])
        dist.all_to_all_single(received, x_Nx.contiguous(), self._sent_R, self._received_R, group=self.group)
        total = torch.zeros(len(self.is_token_in_rank_TR), *x_Nx.shape[1:], dtype=torch.float32)
        return total.index_add_(0, self._tokens, received.float()).to(x_Nx.dtype)
