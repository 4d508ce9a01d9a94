"""What `make gpu-check` writes is what `relibra calibrate` reads."""

from pathlib import Path

from gpu_report import ExpertTimes, GpuReport, Machine

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
