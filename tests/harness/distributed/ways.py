"""The ways of training a GPT that each layout compares to plain training.

There are twelve ways: three kinds of recomputation, two optimizers, two dtypes. Every layout trains with every kind of
recomputation, both optimizers and both dtypes, but pairs each optimizer with one dtype: that is half of all
combinations, and leaves out no combination of recomputation with any of the others. RELIBRA_WHOLE_MATRIX=1, which
`make test-long` sets, trains in all ways on all layouts.
"""

import itertools
import os

RECOMPUTATION = ("none", "selective", "full")
_STRAIGHT, _CROSSED = (("plain", "fp32"), ("sharded", "bf16")), (("plain", "bf16"), ("sharded", "fp32"))
_PAIRS = {"gpt_ep4": _STRAIGHT, "gpt_ep2_edp2": _CROSSED, "gpt_ep2_pp2": _STRAIGHT, "gpt_ep2_vpp": _CROSSED}
LAYOUTS = tuple(_PAIRS)


def pairs(layout: str) -> tuple[tuple[str, str], ...]:
    """Return the pairs of optimizer and dtype that a layout trains with."""
    return _STRAIGHT + _CROSSED if os.environ.get("RELIBRA_WHOLE_MATRIX") else _PAIRS[layout]


def ways(layout: str, dtype: str) -> list[str]:
    """Return the ways of a layout with this dtype, as `recomputation-optimizer-dtype`."""
    return [
        f"{recomputation}-{optimizer}-{dtype}"
        for recomputation, (optimizer, other) in itertools.product(RECOMPUTATION, pairs(layout))
        if other == dtype
    ]
