"""What SkyRL sends to vLLM, with each expert under its own name. Importing this needs vLLM, as SkyRL's sources do."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource

from relibra.plugins.balanced_passes import BalancedPasses
from relibra.plugins.logical_export import Renamed

BACKENDS = ("nccl", "ipc")
"""The backends that tell vLLM names and shapes in every sync, before the tensors."""


class LogicalWeights(WeightSource):  # type: ignore[misc]
    """A source of SkyRL, with each expert under its own name in the body of `exporting`.

    Args:
        source: SkyRL's source, which names experts by place.
    """

    def __init__(self, source: Any) -> None:
        self._source = source
        self._renamed: Renamed | None = None

    @contextmanager
    def exporting(self, passes: BalancedPasses) -> Iterator[None]:
        """Collective over all ranks: give experts their own names in the body, which sends the weights."""
        with passes.exporting() as self._renamed:
            try:
                yield
            finally:
                self._renamed = None

    def metadata(self) -> list[Any]:
        """Return name, type and shape of all tensors, in the order of the stream."""
        told = self._source.metadata()
        if self._renamed is None:
            return list(told)
        shapes = ((meta.name, torch.empty(meta.shape, dtype=meta.dtype, device="meta")) for meta in told)
        return [ParamMeta(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in self._renamed(shapes)]

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return iter(self._source) if self._renamed is None else self._renamed(self._source)
