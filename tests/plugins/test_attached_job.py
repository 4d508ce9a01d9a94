"""What a job asks of its agent where the user says nothing, and where he does."""

import pytest

from relibra.plugins.attached_job import transport_of
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
