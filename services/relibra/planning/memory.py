"""What the activations of routed experts take: what a job registers, so that its plans know the memory of every rank.

A rank keeps what an expert computed for a token from the forward pass to the backward pass. So its memory follows the
token copies that it computes.

An expert computes `fc1` (hidden size to the width of the expert, twice that with a gate), an activation that is
multiplied with the token's probability, and `fc2`. Autograd keeps the inputs of `fc1`, of the activation and of `fc2`,
and, where the activation is not one fused function, the results between its factors.

At the end of a layer's forward, a rank also has what dispatch received, until the layer returns (`dispatched_input` in
megatron's moe_layer.py), the results of `fc2`, again with their biases where experts have some, and these results in
the order of the combine (`sort_chunks_by_idxs` in its token_dispatcher.py). DeepEP and HybridEP hold no more. In the
backward, it has gradients around the activation instead. Tests count the bytes of megatron's layers.
"""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from relibra.errors import InvalidInput

_MAX_CHUNKS = 256
_MOST_EMPTY = 64
"""More stages or chunks without MoE layers have no model, and would make the planner's work long."""
_MAX_COPY_BYTES = 1 << 24
"""No token copy takes as much; products with token counts stay far below 2**63."""
_GATED_RESULTS = 3
"""Without fusion: the activated half, the other half with its offset, and their product."""


def copy_bytes(
    hidden_size: int,
    ffn_size: int,
    *,
    element_bytes: int = 2,
    is_gated: bool = True,
    is_fused: bool = True,
    has_bias: bool = False,
    recomputed: Collection[str] = (),
    layers_at_once: int = 1,
) -> tuple[int, int]:
    """Return the bytes that a token copy takes in one layer until its backward, and besides while the layer runs.

    Args:
        hidden_size: the width of a token.
        ffn_size: the width of the expert, or of the part of it that a rank has.
        element_bytes: the bytes of a number.
        is_gated: whether the activation has a gate.
        is_fused: whether the activation is one function.
        has_bias: whether experts have biases.
        recomputed: what is computed again in the backward, in Megatron's words: `moe` (the layer) or `moe_act`.
        layers_at_once: how many layers are recomputed together.
    """
    before = ffn_size * (2 if is_gated else 1)
    inside = 0 if is_fused else ffn_size * (_GATED_RESULTS if is_gated else 1)
    computed = hidden_size + before + inside + ffn_size
    passing = max((4 if has_bias else 3) * hidden_size, 2 * ffn_size)
    kept = 0 if "moe" in recomputed else hidden_size + before if "moe_act" in recomputed else computed
    return kept * element_bytes, (layers_at_once * computed - kept + passing) * element_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationMemory:
    """What a token copy takes, and which layers a rank runs. By default sizes are not known, and there is one stage.

    Raises:
        InvalidInput: a number is out of range, or the stages do not divide the chunks.
    """

    kept_bytes: int = 0
    """What a token copy takes in one MoE layer from its forward to its backward; 0 where the layer is recomputed."""
    working_bytes: int = 0
    """What it takes besides while that layer runs."""
    num_stages: int = 1
    """The stages of the pipeline."""
    chunk_layers: tuple[int, ...] = ()
    """The number of MoE layers in every chunk, in the order of the model: chunk `c` of stage `p` is entry
    `c * num_stages + p`. Empty: the stages have equally many."""
    budget_bytes: int = 0
    """The most that a rank may take; 0 where there is no budget."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "chunk_layers", tuple(map(int, self.chunk_layers)))
        for field, least, most in (
            ("kept_bytes", 0, _MAX_COPY_BYTES),
            ("working_bytes", 0, _MAX_COPY_BYTES),
            ("num_stages", 1, _MAX_CHUNKS),
            ("budget_bytes", 0, 1 << 63),
        ):
            if not least <= getattr(self, field) <= most:
                raise InvalidInput.of(f"memory.{field}", expected=f"{least} to {most}", got=getattr(self, field))
        if len(self.chunk_layers) > _MAX_CHUNKS or len(self.chunk_layers) % self.num_stages:
            raise InvalidInput.of(
                "memory.chunk_layers",
                expected=f"a multiple of {self.num_stages} stages, at most {_MAX_CHUNKS}",
                got=len(self.chunk_layers),
            )
        if min(self.chunk_layers, default=0) < 0:
            raise InvalidInput.of("memory.chunk_layers", expected="at least 0 layers", got=min(self.chunk_layers))

    @property
    def is_known(self) -> bool:
        """Whether the bytes of a token copy are known."""
        return self.kept_bytes + self.working_bytes > 0

    def layers_of(self, stage: int, num_layers: int) -> list[slice]:
        """Return the layers of every chunk of a stage.

        Raises:
            InvalidInput: the chunks do not have this many layers together, or there are too many chunks or stages.
        """
        most = num_layers + _MOST_EMPTY
        if max(self.num_stages, len(self.chunk_layers)) > most:
            raise InvalidInput.of("memory.chunk_layers", expected=f"at most {most}", got=len(self.chunk_layers))
        counts = self.chunk_layers or tuple(map(len, np.array_split(np.arange(num_layers), self.num_stages)))
        if sum(counts) != num_layers:
            raise InvalidInput.of("memory.chunk_layers", expected=f"{num_layers} layers in all", got=sum(counts))
        ends = np.cumsum(counts)
        return [slice(int(ends[i] - counts[i]), int(ends[i])) for i in range(stage, len(counts), self.num_stages)]


NOT_KNOWN = ActivationMemory()
"""The memory of a job that does not say how large its activations are."""
