"""What a job asks of its agent where the user says nothing, and where he does."""

import pytest

from relibra.errors import Unsupported
from relibra.plugins.attached_job import check_restores, transport_of
from relibra.plugins.settings import PluginSettings


@pytest.mark.parametrize(
    ("wanted", "has_gpu", "transport"),
    [
        ("auto", True, "symmetric_if_possible"),
        ("auto", False, "process_group"),
        ("symmetric", False, "symmetric"),
        ("process_group", True, "process_group"),
    ],
)
def test_gpus_try_symmetric_memory_unless_the_user_names_a_transport(
    wanted: str, has_gpu: bool, transport: str
) -> None:
    settings = PluginSettings(planner="planner:7420", job="job", transport=wanted)
    assert transport_of(settings, has_gpu=has_gpu) == transport


def test_S5_a_checkpoint_that_would_come_back_wrong_is_refused_at_the_start() -> None:
    for version, num_stages, num_predictors in (("0.16.1", 1, 1), ("0.17.1", 2, 0), ("0.18.0", 2, 1)):
        check_restores(version, num_stages=num_stages, num_predictors=num_predictors)
    for version in ("0.16.1", "0.17.1"):
        with pytest.raises(Unsupported, match=f"megatron-core {version} restores .* set reorder=never"):
            check_restores(version, num_stages=2, num_predictors=1)
