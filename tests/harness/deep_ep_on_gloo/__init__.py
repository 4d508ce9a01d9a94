"""A stand-in for the package `deep_ep` on CPU tensors and gloo, so that megatron's code for DeepEP and HybridEP runs.

`normal` follows deep_ep/buffer.py, csrc/deep_ep.cpp and csrc/kernels/intranode.cu of DeepEP 1.2.1 within one node;
`hybrid` follows deep_ep/hybrid_ep_buffer.py of DeepEP's branch hybrid-ep (94a9f8f, 2026-07-10). Both take the arguments
that megatron-core gives, refuse what the packages' assertions refuse, and return results of the same shapes, dtypes and
order. One thing is more: they also take fp32 tokens, which make differences in tests visible; DeepEP takes bf16.
"""

import sys
from types import ModuleType

from harness.deep_ep_on_gloo import hybrid, normal


def install() -> None:
    """Let `import deep_ep` find the stand-in. Call this before megatron is imported."""
    package, utils = ModuleType("deep_ep"), ModuleType("deep_ep.utils")
    vars(package).update(Buffer=normal.Buffer, HybridEPBuffer=hybrid.HybridEPBuffer, utils=utils)
    vars(utils).update(EventHandle=normal.EventHandle, EventOverlap=normal.EventOverlap)
    sys.modules |= {"deep_ep": package, "deep_ep.utils": utils}
