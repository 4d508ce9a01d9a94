"""The stages: their order, and the commands that they run."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.gpu.check.decisions import Facts
from benchmarks.gpu.check.stages import STAGES, chosen

REPOSITORY = Path(__file__).parents[4]
BY_NAME = {stage.name: stage for stage in STAGES}


def test_the_page_names_every_stage_and_its_limit_in_order() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\d+) s \|", (REPOSITORY / "docs" / "gpu-check.md").read_text(), re.MULTILINE)
    assert rows == [(stage.name, f"{stage.limit_s:.0f}") for stage in STAGES]


def test_stages_run_in_their_order_whatever_the_order_of_the_request() -> None:
    assert [each.name for each in chosen(["products", "kernels"])] == ["kernels", "products"]
    assert chosen([]) == list(STAGES)


def test_stages_of_ranks_bring_the_probe_along() -> None:
    assert [each.name for each in chosen(["trace"])] == ["probe", "trace"]


def test_an_unknown_stage_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"expected stages among kernels, .*; got kernel$"):
        chosen(["kernel"])


def test_racecheck_looks_at_kernels_with_shared_memory_and_the_others_at_all(facts: Facts) -> None:
    named = {
        name: [each for each in BY_NAME[name].command(facts, "") if each.startswith("--kernel-name")]
        for name in ("memcheck", "racecheck", "synccheck")
    }
    both = ["--kernel-name=kernel_name=one", "--kernel-name=kernel_name=two"]
    assert named == {"memcheck": both, "racecheck": both[1:], "synccheck": both}


def test_memcheck_sees_every_tensor_as_an_allocation_of_its_own() -> None:
    assert ("PYTORCH_NO_CUDA_MEMORY_CACHING", "1") in BY_NAME["memcheck"].variables


def test_ranks_join_as_the_probe_found(facts: Facts) -> None:
    command = BY_NAME["ranks"].command(facts, "")
    assert command[-4:] == ["--device", "cuda", "--way", "nccl-host-ids"]


def test_a_rehearsal_names_the_cpu(facts: Facts) -> None:
    on_cpu = replace(facts, device=None, is_rehearsal=True, way="cpu")
    for name in ("probe", "products", "host"):
        command = list(BY_NAME[name].command(on_cpu, "figures.json"))
        assert command[command.index("--device") + 1] == "cpu"
        assert command[-2:] == ["--figures", "figures.json"]
