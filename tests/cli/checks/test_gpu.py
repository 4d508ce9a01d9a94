import pytest

from relibra.cli.checks.finding import CheckResult
from relibra.cli.checks.gpu import TorchCuda, judge

GPUS = ["NVIDIA H100, 570.1"] * 8


@pytest.mark.parametrize(
    ("gpus", "cuda", "is_available", "verdict", "said"),
    [
        (None, None, False, CheckResult.SKIPPED, "no NVIDIA GPU"),
        (None, "13.0", False, CheckResult.WARNING, "no driver responds"),
        (GPUS, None, False, CheckResult.FAILED, "built without CUDA"),
        (GPUS, "13.0", False, CheckResult.FAILED, "on driver 570.1"),
        (GPUS, "13.0", True, CheckResult.OK, "CUDA 13.0"),
    ],
)
def test_driver_and_torch_must_match(gpus, cuda, is_available, verdict, said):
    found = judge(gpus, TorchCuda(version="2.9", cuda=cuda, is_available=is_available))[-1]
    assert found.verdict is verdict
    assert said in found.reason


def test_without_torch_the_check_of_torch_is_skipped():
    assert [each.verdict for each in judge(GPUS, None)] == [CheckResult.OK, CheckResult.SKIPPED]
