"""What the check finds out about the kernels."""

from pathlib import Path

import pytest

from benchmarks.gpu.check import facts


def test_the_kernels_with_shared_memory_are_read_from_the_source(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert "quota_prefix" in facts.with_shared_memory()
    assert "expert_copy" not in facts.with_shared_memory()
    (tmp_path / "one.cu").write_text("__global__ void one() {}")
    (tmp_path / "two.cu").write_text("__global__ void two() { __shared__ int sums[2]; }")
    monkeypatch.setattr(facts, "FOLDER", tmp_path)
    monkeypatch.setattr(facts, "KERNELS", {"one": "one.cu", "two": "two.cu"})
    monkeypatch.setattr(facts, "headers", dict)
    assert facts.with_shared_memory() == ("two",)
    monkeypatch.setattr(facts, "headers", lambda: {"both.cuh": "__device__ void both() { __shared__ int sums[2]; }"})
    assert facts.with_shared_memory() == ("one", "two")
