"""`relibra calibrate` reads what `make gpu-check` writes, and the figures mark slow kernels."""

import json
from pathlib import Path

import pytest

from benchmarks.gpu import experts
from benchmarks.gpu.measure import says
from relibra.evaluation.calibration import calibrate, read_measurements


def test_measured_times_become_a_cost_model(tmp_path: Path) -> None:
    row = experts.row("qwen3-30b-a3b", (1, 1024, 8192), (5.0, 30.0, 210.0))
    path = tmp_path / "bandwidth.json"
    path.write_text(json.dumps({"machine": {"device": "Some GPU 80GB"}, "experts": [row]}))
    (measurement,) = read_measurements(path)
    assert (measurement.device, measurement.weight_size_bytes) == ("Some GPU 80GB", 9_437_184)
    cost = calibrate(measurement, {})
    assert cost.expert_us == (5.0, 30.0, 210.0)
    assert cost.compute_us(8192 + 1024) > 210.0


@pytest.mark.parametrize(("share", "mark"), [(0.8946, "  BELOW 0.9"), (0.95, "")])
def test_a_kernel_below_its_share_of_a_copy_is_marked_in_its_line(share: float, mark: str) -> None:
    row = {"kernel": "expert_pack", "case": "9 MB experts", "gb_per_s": 2147.0, "share_of_copy": share}
    figures = {"kernels": [row, row | {"share_of_copy": 0.99}], "launch_us": {"torch": 2.0}, "failures": ["x"]}
    assert list(says(figures)) == [
        f"worst expert_pack, 9 MB experts: 2147 GB/s = {share:.3f} of a copy{mark}",
        "torch: 2.0 us of host a call",
        "FAILED x",
    ]
