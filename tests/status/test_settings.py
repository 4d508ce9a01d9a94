"""Settings of the status service."""

from pathlib import Path

import pytest

from relibra.errors import InvalidInput, Unsupported
from relibra.status.settings import StatusSettings

URL = "redis://:secret@host/0"


def test_arguments_before_environment_before_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "relibra.toml"
    file.write_text("[status]\nport = 1\nmax_viewers = 2\nnum_cached_plans = 3\n[planner]\nport = 9\n")
    monkeypatch.setenv("RELIBRA_CONFIG_FILE", str(file))
    monkeypatch.setenv("RELIBRA_MAX_VIEWERS", "20")
    settings = StatusSettings.load(redis_url=URL, port=100, host=None)
    assert (settings.port, settings.max_viewers, settings.num_cached_plans) == (100, 20, 3)
    assert "secret" not in repr(settings)


@pytest.mark.parametrize(("field", "value"), [("port", 70000), ("poll_interval_s", 0), ("auth", "perhaps")])
def test_bad_values_are_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(InvalidInput, match=field):
        StatusSettings.load(redis_url=URL, **{field: value})


def test_a_missing_file_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELIBRA_CONFIG_FILE", "/nowhere.toml")
    with pytest.raises(InvalidInput, match=r"RELIBRA_CONFIG_FILE.*nowhere"):
        StatusSettings.load(redis_url=URL)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "status.example"])
def test_S6_the_network_is_not_served_without_authentication(host: str) -> None:
    with pytest.raises(Unsupported, match="every job"):
        StatusSettings.load(redis_url=URL, host=host)
    assert StatusSettings.load(redis_url=URL, host=host, auth="required").host == host
    assert StatusSettings.load(redis_url=URL, host=host, insecure=True).host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_one_machine_needs_no_tokens(host: str) -> None:
    assert StatusSettings.load(redis_url=URL, host=host).auth == "none"
