"""Rounding to fp8 with the scales of Transformer Engine's recipes.

Written after Transformer Engine 2.9, transformer_engine/pytorch/tensor: float8_tensor.py, float8_blockwise_tensor.py
and mxfp8_tensor.py, which say which elements share a scale.
"""

import torch
from torch import Tensor

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def rounded(tensor: Tensor, dtype: torch.dtype, block: tuple[int, int] | None, *, powers_of_2: bool) -> Tensor:
    """Round to fp8 with one scale per block of (rows, columns), or with one scale if `block` is None. Return fp32."""
    rows, columns = tensor.shape
    height, width = block or (rows, columns)
    if not tensor.numel():
        return tensor.float()
    padded = torch.nn.functional.pad(tensor.float(), (0, -columns % width, 0, -rows % height))
    blocks = padded.unflatten(1, (-1, width)).unflatten(0, (-1, height))
    scale = torch.finfo(dtype).max / blocks.abs().amax(dim=(1, 3), keepdim=True).clamp(min=1e-12)
    if powers_of_2:
        scale = torch.exp2(torch.floor(torch.log2(scale)))
    fp8 = (blocks * scale).to(dtype).float() / scale
    return fp8.flatten(2, 3).flatten(0, 1)[:rows, :columns]


class Quantizer:
    """Rounds as its recipe does: `rowwise` for a product over the columns, `columnwise` for one over the rows."""

    def __init__(self, recipe: str, dtype: torch.dtype, *, is_weight: bool) -> None:
        wide = {"blockwise": 128, "mxfp8": 32, "tensorwise": None}[recipe]
        tall = wide if is_weight and recipe == "blockwise" else 1
        self._rowwise = None if wide is None else (tall, wide)
        self._columnwise = None if wide is None else (wide, tall)
        self._dtype, self._powers_of_2 = dtype, recipe != "tensorwise"

    def rowwise(self, tensor: Tensor) -> Tensor:
        return rounded(tensor, self._dtype, self._rowwise, powers_of_2=self._powers_of_2)

    def columnwise(self, tensor: Tensor) -> Tensor:
        return rounded(tensor, self._dtype, self._columnwise, powers_of_2=self._powers_of_2)
