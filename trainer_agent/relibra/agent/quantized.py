"""What quantised (fp8) grouped products keep between forwards, and what replicas must neither lack nor meet of it.

Transformer Engine's `GroupedLinear` quantises weights in its forward. It keeps two things for later forwards:

- quantisers, made in the first quantised forward for as many products as that one has. A later forward with more
  replicas would lack some.
- quantised weights (`_fp8_workspaces`), by the name of the parameter, from the first micro-batch of a step on. A
  replica would meet those of the replica that was in its slot before, and a home slot after a reorder those of the
  expert that left.

Neither holds state of training, unless scaling is delayed (`relibra.agent.settings` refuses that), so both can be made
anew at any time. Read in Transformer Engine 2.3, 2.4, 2.9, 2.12, 2.16 and 2.20.dev, transformer_engine/pytorch/module:
base.py (`init_fp8_metadata`, `set_meta_tensor`, `get_weight_workspace`) and grouped_linear.py.
"""

from collections.abc import Container
from typing import Any

_QUANTIZERS_PER_PRODUCT = 3
"""In a forward: one each for input, weight and output."""


def make_room(product: Any, num_products: int) -> None:
    """Let a grouped product make its quantisers again in its next forward, if it has some but too few."""
    held = len(product.quantizers["scaling_fwd"]) if hasattr(product, "quantizers") else 0
    if 0 < held < _QUANTIZERS_PER_PRODUCT * num_products:
        product.fp8_initialized = product.fp8_meta_tensors_initialized = False


def forget(product: Any, *, but: Container[str] = ()) -> None:
    """Let a grouped product quantise weights again, except for those whose names are in `but`.

    The backwards of earlier forwards keep what they need.
    """
    workspaces = getattr(product, "_fp8_workspaces", {})
    for name in [key for key in workspaces if key not in but]:
        del workspaces[name]
