"""`relibra calibrate` reads what `make gpu-check` writes, and the report marks slow kernels."""

import dataclasses
from pathlib import Path

import pytest

from benchmarks.gpu.report import ExpertTimes, GpuReport, KernelRate, Machine
from relibra.evaluation.calibration import calibrate, read_measurements

MACHINE = Machine(
    device="Some GPU 80GB",
    num_sms=132,
    memory_bytes=80 << 30,
    compute_capability="9.0",
    torch="2.9",
    cuda="13.0",
    nvrtc="13.0",
    date="2026-01-01T00:00:00+00:00",
)


def test_measured_times_become_a_cost_model(tmp_path: Path) -> None:
    times = ExpertTimes(
        preset="a model",
        hidden_size=2048,
        ffn_size=768,
        weight_size_bytes=9_437_184,
        num_experts=8,
        grouped=True,
        expert_tokens=(1, 1024, 8192),
        expert_us=(5.0, 30.0, 210.0),
    )
    path = GpuReport(machine=MACHINE, experts=[times]).write(tmp_path)
    assert path.name == "gpu-some-gpu-80gb.json"
    (measurement,) = read_measurements(path)
    assert measurement.device == MACHINE.device
    cost = calibrate(measurement, {})
    assert cost.expert_us == (5.0, 30.0, 210.0)
    assert cost.compute_us(8192 + 1024) > 210.0


@pytest.mark.parametrize("is_below_goal", [True, False])
def test_a_kernel_below_its_share_of_a_copy_is_marked_in_its_row(is_below_goal: bool) -> None:
    rate = KernelRate(
        kernel="expert_pack",
        case="9 MB experts",
        moved_bytes=1 << 30,
        time_us=500.0,
        gb_per_s=2147.0,
        copy_gb_per_s=2400.0,
        share_of_copy=0.8946,
        is_below_goal=is_below_goal,
        reference_us=900.0,
    )
    report = GpuReport(machine=MACHINE, kernels=[dataclasses.replace(rate, share_of_copy=0.99), rate], failures=["x"])
    assert report.says() == ["device copy: unmeasured", f"worst {rate}", "FAILED x"]
    assert ("2147 GB/s = 0.895 of a copy" in str(rate), str(rate).endswith("BELOW 0.9")) == (True, is_below_goal)
