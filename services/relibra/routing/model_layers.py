"""Which layers of a model route tokens. A routed-experts payload does not say this itself."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relibra.errors import InvalidInput

MAX_EXPERTS = 1 << 16
"""Expert ids are stored in at most 16 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLayers:
    """The routers of a model.

    Engines number all transformer layers, with zeros for the dense ones; trainers number MoE layers only.
    """

    num_experts: int
    """E, without shared experts, which no router chooses."""
    top_k: int
    """K."""
    is_moe: tuple[bool, ...]
    """Whether each transformer layer, in order, is an MoE layer. Hybrid models have other layers between MoE layers."""
    num_mtp_layers: int = 0
    """Routers of multi-token prediction after the last layer. They are left out, because no trainer replays them."""

    def __post_init__(self) -> None:
        if not 1 <= self.num_experts <= MAX_EXPERTS:
            raise InvalidInput.of("num_experts", expected=f"1 to {MAX_EXPERTS}", got=self.num_experts)
        if not 1 <= self.top_k <= self.num_experts:
            raise InvalidInput.of("top_k", expected=f"1 to num_experts = {self.num_experts}", got=self.top_k)
        if not any(self.is_moe):
            raise InvalidInput.of(
                "is_moe", expected="at least one MoE layer", got=f"{len(self.is_moe)} layers without any"
            )
        if self.num_mtp_layers < 0:
            raise InvalidInput.of("num_mtp_layers", expected="at least 0", got=self.num_mtp_layers)

    @classmethod
    def uniform(cls, *, num_layers: int, num_experts: int, top_k: int) -> "ModelLayers":
        """Return a model whose layers are all MoE layers."""
        return cls(num_experts=num_experts, top_k=top_k, is_moe=(True,) * num_layers)

    @property
    def num_layers(self) -> int:
        """The number of all transformer layers."""
        return len(self.is_moe)

    @property
    def num_moe_layers(self) -> int:
        """L, the number of MoE layers."""
        return sum(self.is_moe)

    @property
    def id_dtype(self) -> np.dtype[Any]:
        """The narrowest unsigned type that holds an expert id."""
        return np.dtype(np.uint8 if self.num_experts <= 256 else np.uint16)

    def select_moe(self, ids_TXK: NDArray[np.integer], field: str) -> NDArray[np.integer]:
        """Return the MoE layers of a payload that has all layers or MoE layers only, without MTP layers.

        Raises:
            InvalidInput: the payload has another number of layers, or routes in a dense layer.
        """
        num_found = ids_TXK.shape[1] if ids_TXK.ndim == 3 else -1
        for num_known in (self.num_layers, self.num_moe_layers):
            if num_found in (num_known, num_known + self.num_mtp_layers):
                ids_TXK = ids_TXK[:, :num_known]
                return self._without_dense(ids_TXK, field) if num_known != self.num_moe_layers else ids_TXK
        raise InvalidInput.of(
            field,
            expected=f"[rows, {self.num_layers} layers or {self.num_moe_layers} MoE layers, top {self.top_k}]",
            got=list(ids_TXK.shape),
        )

    def _without_dense(self, ids_TXK: NDArray[np.integer], field: str) -> NDArray[np.integer]:
        is_moe_X = np.array(self.is_moe)
        for layer in np.flatnonzero(~is_moe_X):
            if ids_TXK[:, layer].max(initial=0) > 0:
                raise InvalidInput.of(
                    f"{field}[:, {layer}]",
                    expected="no routes, as the layer is dense",
                    got="expert ids; check the model's layers (a draft model can overwrite layer 0, vLLM #48622)",
                )
        moe_L = np.flatnonzero(is_moe_X)
        if moe_L[-1] - moe_L[0] + 1 == len(moe_L):
            return ids_TXK[:, moe_L[0] : moe_L[-1] + 1]  # a view, for models whose first layers are dense
        return ids_TXK[:, moe_L]
