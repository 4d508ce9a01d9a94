"""The ways of training a GPT that each layout compares to plain training.

There are twelve ways: three kinds of recomputation, two optimizers, two dtypes. Every layout trains with every kind of
recomputation and its own pair of optimizer and dtype, so that each way is taken on one layout. RELIBRA_WHOLE_MATRIX=1,
which `make test-long` sets, trains in all ways on all layouts.
"""

import itertools
import os

RECOMPUTATION = ("none", "selective", "full")
_PAIRS = {
    "gpt_ep4": ("plain", "fp32"),
    "gpt_ep2_edp2": ("sharded", "bf16"),
    "gpt_ep2_pp2": ("plain", "bf16"),
    "gpt_ep2_vpp": ("sharded", "fp32"),
}
LAYOUTS = tuple(_PAIRS)


def pairs(layout: str) -> tuple[tuple[str, str], ...]:
    """Return the pairs of optimizer and dtype that a layout trains with."""
    return tuple(_PAIRS.values()) if os.environ.get("RELIBRA_WHOLE_MATRIX") else (_PAIRS[layout],)


def ways(layout: str, dtype: str) -> list[str]:
    """Return the ways of a layout with this dtype, as `recomputation-optimizer-dtype`."""
    return [
        f"{recomputation}-{optimizer}-{dtype}"
        for recomputation, (optimizer, other) in itertools.product(RECOMPUTATION, pairs(layout))
        if other == dtype
    ]
