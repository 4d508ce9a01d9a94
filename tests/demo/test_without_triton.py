"""A module that defines Triton's kernels can be imported without Triton."""

import importlib
import sys
from pathlib import Path

from relibra.demo import without_triton

KERNELS = """
import triton
import triton.language as tl

@triton.jit
def plain(size: tl.constexpr): return 1

@triton.autotune(configs=[triton.Config({}, num_warps=2)], key=["size"])
@triton.jit
def tuned(size: tl.constexpr): return 2
"""


def test_kernels_can_be_defined_and_nothing_else_sees_the_stand_in(tmp_path: Path, monkeypatch):
    (tmp_path / "kernels_of_a_test.py").write_text(KERNELS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(without_triton, "_NEED_TRITON", ("kernels_of_a_test",))
    monkeypatch.setattr(sys, "meta_path", [without_triton._Finder(), *sys.meta_path])
    for name in without_triton._STAND_INS:  # torch for CUDA brings Triton, and another test may have imported it
        monkeypatch.delitem(sys.modules, name, raising=False)
    before = sys.modules.get("triton")
    kernels = importlib.import_module("kernels_of_a_test")
    assert (kernels.plain(0), kernels.tuned(0)) == (1, 2)
    assert sys.modules.get("triton") is before
    del sys.modules["kernels_of_a_test"]
