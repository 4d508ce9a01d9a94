from pathlib import Path
from typing import Any

import pytest

from relibra.errors import InvalidInput, Unsupported
from relibra.planner.settings import PlannerSettings

URL = "redis://user:hush@redis:6379/0"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "relibra.toml"
    path.write_text("[planner]\nport = 1\nmax_jobs = 2\nnum_solvers = 3\n")
    monkeypatch.setenv("RELIBRA_CONFIG_FILE", str(path))
    return path


def test_arguments_come_before_the_environment_and_that_before_the_file(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELIBRA_PORT", "10")
    monkeypatch.setenv("RELIBRA_MAX_JOBS", "20")
    settings = PlannerSettings.load(redis_url=URL, port=100, host=None)
    assert (settings.port, settings.max_jobs, settings.num_solvers, settings.host) == (100, 20, 3, "127.0.0.1")


@pytest.mark.parametrize(
    ("content", "fault"), [("[planner]\nprot = 1", "prot"), ("[planner]\nport = -1", "port"), ("[planner", "TOML")]
)
def test_a_bad_file_is_refused_by_name(file: Path, content: str, fault: str) -> None:
    file.write_text(content)
    with pytest.raises(InvalidInput, match=fault):
        PlannerSettings.load(redis_url=URL)


def test_a_missing_file_and_a_missing_redis_are_refused(file: Path) -> None:
    with pytest.raises(InvalidInput, match="redis_url"):
        PlannerSettings.load()
    file.unlink()
    with pytest.raises(InvalidInput, match="RELIBRA_CONFIG_FILE: expected a TOML file, got no file"):
        PlannerSettings.load(redis_url=URL)


def test_S6_secrets_are_not_shown() -> None:
    settings = PlannerSettings.load(redis_url=URL)
    assert "hush" not in settings.model_dump_json()
    assert "hush" not in repr(settings)
    assert "user:***@redis" in settings.model_dump_json()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "planner.example"])
def test_S6_the_network_is_not_served_without_authentication(host: str) -> None:
    with pytest.raises(Unsupported, match="anybody could change any job"):
        PlannerSettings.load(redis_url=URL, host=host)
    assert PlannerSettings.load(redis_url=URL, host=host, auth="required").host == host
    assert PlannerSettings.load(redis_url=URL, host=host, insecure=True).host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.9.9.9"])
def test_this_machine_needs_none(host: str) -> None:
    assert PlannerSettings.load(redis_url=URL, host=host).auth == "none"


@pytest.mark.parametrize(
    "files", [{"tls_cert_file": Path("c")}, {"tls_key_file": Path("k")}, {"tls_client_ca_file": Path("ca")}]
)
def test_half_of_tls_is_refused(files: dict[str, Any]) -> None:
    with pytest.raises(Unsupported, match=r"TLS|tls_cert_file"):
        PlannerSettings.load(redis_url=URL, **files)
