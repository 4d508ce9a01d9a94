"""What a cell costs in microseconds, so that balance is bought only where it is worth its price.

    time of a cell = slowest rank's expert compute + dispatch and combine + what of its replicas' transfer is not hidden

Token imbalance is the special case where one token costs one unit and everything else is free (`CostModel.tokens`).

Defaults are for nodes of 8 H100 or H200 and come from `CostModel.of_expert`:

- 400 TFLOP/s of dense bf16 in grouped matrix multiplication, out of 989 peak; 2 FLOP per parameter and token.
- 2.7 TB/s of HBM, 80 % of an H100's 3.35: an expert with few tokens still reads all its weights.
- 360 GB/s per direction inside a node, 80 % of NVLink 4's 450: 371 to 380 are measured on H100 (NVIDIA/nccl#1264).
- 45 GB/s per GPU between nodes, 90 % of one 400 Gb/s adapter: 41 to 46 is what DeepEP reaches. An all-to-all of NCCL
  reaches 19 to 44 (`relibra.planning.machines.dispatcher` has the sources); a job that uses one registers its own rate.
- 90 % of a replica's transfer is hidden: plans are known ahead, and the attention of one layer lasts several times as
  long as filling two slots over NVLink (52 of 2100 us for a 30B model, 210 of 5700 us for a 235B one).

With these defaults, a replica whose transfer is not hidden at all pays from about 1300 tokens on, whatever the size of
the expert. UltraEP, which hides no transfer, uses 1024 where it cannot get within a few per cent of balance.
"""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from math import isfinite

from relibra.errors import InvalidInput

BF16_BYTES = 2
_FLOP_PER_US = 400e6
_HBM_BYTES_PER_US = 2.7e6
_FREE = 1e30

_FORWARD_PASSES = 4
"""Compute of a step, in forward passes: recompute 1, forward 1, backward 2."""

_PASSES = 3
"""How often a step passes over a cell: recompute, forward and backward."""

_DISPATCHES = 3
"""How often a step sends token copies out and back: in recompute, forward and backward."""

WEIGHT_TRANSFERS = 5
"""What a replica moves in a step, in sizes of its bf16 weights: the weights in for recompute, forward and backward (3),
and the fp32 gradients out (2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModel:
    """Microseconds of one rank's work in one layer's forward pass.

    By default a token takes 1 us, and the links are those of an H100-class node. `of_expert` gives times for experts of
    a known size.

    Raises:
        InvalidInput: a value is out of range, token counts do not rise, or times fall.
    """

    expert_tokens: tuple[float, ...] = (0.0, 1.0)
    """Token counts at which the time of one expert is known: at least two, rising."""
    expert_us: tuple[float, ...] = (0.0, 1.0)
    """The time of one expert at each of these counts, never falling; linear between them and beyond the last."""
    token_size_bytes: float = 0.0
    """The bytes that dispatch and combine together move for a token that travels once, as a mean over the passes of a
    step; 0 makes traffic between nodes free."""
    intra_node_bytes_per_us: float = 360e3
    inter_node_bytes_per_us: float = 45e3
    hidden_transfer_share: float = 0.9
    """The part of the transfer of replicas that is hidden behind attention."""
    host_us: float = 0.0
    """The time that hosts need for a pass (recompute, forward, backward) over a cell with replicas, beside a cell
    without."""
    layer_host_us: float = _FREE
    """The time that hosts need for a pass over a cell without replicas. Devices that work longer than that hide
    `host_us`. By default nothing does."""
    sends_once_per_node: bool = False
    """Whether dispatch sends a token once to a node, where all adapters share what enters it (DeepEP, HybridEP). By
    default every copy enters the adapter of its own rank, as in an all-to-all."""

    def __post_init__(self) -> None:
        tokens, times = tuple(map(float, self.expert_tokens)), tuple(map(float, self.expert_us))
        object.__setattr__(self, "expert_tokens", tokens)
        object.__setattr__(self, "expert_us", times)
        rising = all(one < other for one, other in pairwise(tokens))
        if len(tokens) < 2 or not rising or not all(map(isfinite, tokens)) or tokens[0] < 0:
            raise InvalidInput.of(
                "cost.expert_tokens", expected="at least two rising numbers, none below 0", got=tokens
            )
        not_falling = all(one <= other for one, other in pairwise(times))
        if len(times) != len(tokens) or not not_falling or not all(map(isfinite, times)) or times[0] < 0:
            raise InvalidInput.of(
                "cost.expert_us", expected=f"{len(tokens)} times that never fall, none below 0", got=times
            )
        if times[-2] == times[-1]:
            raise InvalidInput.of(
                "cost.expert_us",
                expected="a longer time for the last token count than for the one before",
                got=times[-2:],
            )
        for field, least in (("token_size_bytes", 0), ("intra_node_bytes_per_us", 1), ("inter_node_bytes_per_us", 1)):
            if not least <= getattr(self, field) <= _FREE:
                raise InvalidInput.of(f"cost.{field}", expected=f"at least {least}", got=getattr(self, field))
        if not 0 <= self.hidden_transfer_share <= 1:
            raise InvalidInput.of("cost.hidden_transfer_share", expected="0 to 1", got=self.hidden_transfer_share)
        for field in ("host_us", "layer_host_us"):
            if not 0 <= getattr(self, field) <= _FREE:
                raise InvalidInput.of(f"cost.{field}", expected="at least 0", got=getattr(self, field))
        if not isinstance(self.sends_once_per_node, bool):
            raise InvalidInput.of("cost.sends_once_per_node", expected="true or false", got=self.sends_once_per_node)

    @classmethod
    def tokens(cls) -> "CostModel":
        """Return the cost model that counts tokens and nothing else."""
        return cls(intra_node_bytes_per_us=_FREE, inter_node_bytes_per_us=_FREE, hidden_transfer_share=1.0)

    @classmethod
    def of_expert(cls, weight_size_bytes: int, token_size_bytes: float = 0.0) -> "CostModel":
        """Return the defaults for H100-class nodes and experts whose bf16 weights have this size."""
        read_us = weight_size_bytes / _HBM_BYTES_PER_US
        flop_per_token = 2 * weight_size_bytes / BF16_BYTES
        us_per_token = max(flop_per_token, 1.0) / _FLOP_PER_US
        return cls(
            expert_tokens=(0.0, 1024.0),
            expert_us=(read_us, read_us + 1024 * us_per_token),
            token_size_bytes=token_size_bytes,
        )

    @classmethod
    def from_dict(cls, fields: Mapping[str, object]) -> "CostModel":
        """Read a cost model from JSON; missing keys take their default.

        Raises:
            InvalidInput: a key is unknown, or a value is out of range.
        """
        unknown = sorted(set(fields) - set(cls.__dataclass_fields__))
        if unknown:
            raise InvalidInput.of("cost", expected=f"the keys {', '.join(cls.__dataclass_fields__)}", got=unknown[0])
        try:
            return cls(**fields)  # type: ignore[arg-type]
        except (TypeError, ValueError) as error:
            raise InvalidInput.of("cost", expected="numbers, and lists of numbers", got=error) from error

    def to_dict(self) -> dict[str, object]:
        """Return the fields as JSON has them; `from_dict` reads them."""
        return asdict(self)

    @property
    def us_per_token(self) -> float:
        """The time that one more token adds to an expert that has many tokens."""
        return (self.expert_us[-1] - self.expert_us[-2]) / (self.expert_tokens[-1] - self.expert_tokens[-2])

    def compute_us(self, num_tokens: float) -> float:
        """Return the time of one expert with `num_tokens` tokens; an expert without tokens takes no time."""
        if num_tokens <= 0:
            return 0.0
        last = len(self.expert_tokens) - 1
        piece = min(max(bisect_right(self.expert_tokens, num_tokens), 1), last)
        x0, x1 = self.expert_tokens[piece - 1 : piece + 1]
        y0, y1 = self.expert_us[piece - 1 : piece + 1]
        return max(y0 + (num_tokens - x0) * (y1 - y0) / (x1 - x0), 0.0)

    def transfer_us(self, size_bytes: float) -> float:
        """Return the time that transferring this many bytes of replicas adds to a cell: the part that is not hidden."""
        return (1 - self.hidden_transfer_share) * size_bytes / self.intra_node_bytes_per_us

    def min_tokens_per_replica(self, weight_size_bytes: int) -> int:
        """Return the smallest number of tokens with which a replica saves more time in a step than it costs.

        A replica takes its tokens off the slowest rank. It costs the rank that holds the replica one more expert, whose
        weights must be transferred and read.
        """
        fixed_us = _FORWARD_PASSES * self.compute_us(1) + self.transfer_us(WEIGHT_TRANSFERS * weight_size_bytes)
        return max(1, round(fixed_us / (_FORWARD_PASSES * self.us_per_token)))

    def saved_us(self, num_tokens: float) -> float:
        """Return the time a step saves if the slowest ranks of its cells compute `num_tokens` fewer tokens in all."""
        return _FORWARD_PASSES * self.us_per_token * num_tokens

    def waiting_us(self, num_copies: float) -> float:
        """Return for how long devices wait for their hosts because a cell has replicas, in a pass of `num_copies` each.

        The device's work is counted as what is certain: the products of the copies and, in an all-to-all, their way out
        and back inside a node.
        """
        sent_us = 0.0 if self.sends_once_per_node else self.token_size_bytes / self.intra_node_bytes_per_us
        worked_us = num_copies * (self.us_per_token + sent_us)
        return min(self.host_us, max(0.0, self.layer_host_us + self.host_us - worked_us))

    def cell_tokens(self, num_copies: float) -> float:
        """Return the tokens that a rank computes in `waiting_us`, over a step."""
        return _PASSES * self.waiting_us(num_copies) / (_FORWARD_PASSES * self.us_per_token)

    @property
    def crossing_tokens(self) -> float:
        """The tokens a rank computes in the time that one token copy takes to another node and back, over a step."""
        return self.crossing_us(1) / self.saved_us(1)

    def crossing_us(self, num_copies: float) -> float:
        """Return the time of a step in which an adapter sends `num_copies` token copies to other nodes and back."""
        return _DISPATCHES * self.token_size_bytes / self.inter_node_bytes_per_us * num_copies

    def counting_copies(self, top_k: int, num_experts: int, num_nodes: int) -> "CostModel":
        """Return the cost model whose token has the bytes that one more token copy adds to the traffic between nodes.

        In an all-to-all, every copy travels and adds a whole token. Where a token is sent once to each node, most
        copies travel with others: the model is that a token draws `top_k` different experts, otherwise independently,
        of nodes with equal shares.
        """
        if not self.sends_once_per_node or num_nodes == 1:
            return self
        share, misses, added = 1 / num_nodes, 1.0, 0.0
        for drawn in range(top_k):
            left = 1 - drawn / num_experts
            if left <= share:  # every token wants an expert of every node, and goes there anyway
                return replace(self, token_size_bytes=0.0)
            added += 1 / (left - share)
            misses *= (left - share) / left
        return replace(self, token_size_bytes=self.token_size_bytes * misses * added / top_k)
