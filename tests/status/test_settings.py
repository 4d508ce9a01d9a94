"""The settings of the status service; tests/test_service_settings.py tests the shared ones."""

import pytest

from relibra.errors import InvalidInput
from relibra.status.settings import StatusSettings


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_cached_plans", 0),
        ("poll_interval_s", 0),
        ("max_viewers", 0),
        ("max_viewers_per_token", 0),
        ("max_connections", 0),
        ("head_timeout_s", 0),
        ("max_requests_per_viewer", 0),
        ("answer_timeout_s", 0),
    ],
)
def test_bad_values_are_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(InvalidInput, match=field):
        StatusSettings.load(redis_url="redis://host/0", **{field: value})
