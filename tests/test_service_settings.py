"""Settings of services, by those of the two that there are."""

from pathlib import Path

import pytest

from relibra.errors import InvalidInput, Unsupported
from relibra.planner.settings import PlannerSettings
from relibra.service_settings import ServiceSettings
from relibra.status.settings import StatusSettings

URL = "redis://user:hush@redis:6379/0"

pytestmark = pytest.mark.parametrize("settings_class", [PlannerSettings, StatusSettings])


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "relibra.toml"
    path.write_text("[planner]\nport = 1\nhost = 'localhost'\n[status]\nport = 1\nhost = 'localhost'\n")
    monkeypatch.setenv("RELIBRA_CONFIG_FILE", str(path))
    return path


def test_arguments_come_before_the_environment_and_that_before_the_file(
    settings_class: type[ServiceSettings], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELIBRA_PORT", "10")
    monkeypatch.setenv("RELIBRA_METRICS_PORT", "20")
    settings = settings_class.load(redis_url=URL, metrics_port=30, auth=None)
    assert settings.model_dump(include={"host", "port", "metrics_port", "auth"}) == {
        "host": "localhost",
        "port": 10,
        "metrics_port": 30,
        "auth": "none",
    }


@pytest.mark.parametrize(
    ("content", "fault"), [("[{}]\nprot = 1", "prot"), ("[{}]\nport = -1", "port"), ("[{}", "TOML")]
)
def test_a_bad_file_is_refused_by_name(
    settings_class: type[ServiceSettings], file: Path, content: str, fault: str
) -> None:
    file.write_text(content.format(settings_class.table))
    with pytest.raises(InvalidInput, match=fault):
        settings_class.load(redis_url=URL)


def test_a_missing_file_and_a_missing_redis_are_refused(settings_class: type[ServiceSettings], file: Path) -> None:
    with pytest.raises(InvalidInput, match="redis_url"):
        settings_class.load()
    file.unlink()
    with pytest.raises(InvalidInput, match="RELIBRA_CONFIG_FILE: expected a TOML file, got no file"):
        settings_class.load(redis_url=URL)


def test_S6_secrets_are_not_shown(settings_class: type[ServiceSettings]) -> None:
    settings = settings_class.load(redis_url=URL)
    assert "hush" not in settings.model_dump_json()
    assert "hush" not in repr(settings)
    assert "user:***@redis" in settings.model_dump_json()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "relibra.example"])
def test_S6_the_network_is_not_served_without_authentication(settings_class: type[ServiceSettings], host: str) -> None:
    with pytest.raises(Unsupported, match=settings_class.exposes):
        settings_class.load(redis_url=URL, host=host)
    assert settings_class.load(redis_url=URL, host=host, auth="required", plaintext=True).host == host
    assert settings_class.load(redis_url=URL, host=host, insecure=True).host == host


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "relibra.example"])
def test_S6_tokens_do_not_cross_the_network_unencrypted(settings_class: type[ServiceSettings], host: str) -> None:
    for insecure in (False, True):  # serving without authentication is another permission
        with pytest.raises(Unsupported, match=f"{settings_class.encrypting}, or set plaintext"):
            settings_class.load(redis_url=URL, host=host, auth="required", insecure=insecure)
    assert settings_class.load(redis_url=URL, host="127.0.0.1", auth="required").auth == "required"
    if settings_class is PlannerSettings:
        tls = {"tls_cert_file": "cert.pem", "tls_key_file": "key.pem"}
        assert settings_class.load(redis_url=URL, host=host, auth="required", **tls).has_tls


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.9.9.9"])
def test_this_machine_needs_none(settings_class: type[ServiceSettings], host: str) -> None:
    assert settings_class.load(redis_url=URL, host=host).auth == "none"


def test_S6_the_password_comes_from_its_file_and_is_not_shown(
    settings_class: type[ServiceSettings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "password").write_text("p@ss\n")
    monkeypatch.setenv("RELIBRA_REDIS_PASSWORD_FILE", str(tmp_path / "password"))
    settings = settings_class.load(redis_url="redis://user@redis:6379/0")
    assert settings.redis_url == "redis://user:p%40ss@redis:6379/0"
    assert "p%40ss" not in settings.model_dump_json() + repr(settings)
    monkeypatch.setenv("RELIBRA_REDIS_PASSWORD_FILE", str(tmp_path / "missing"))
    with pytest.raises(InvalidInput, match="redis_password_file: expected a file with a password"):
        settings_class.load(redis_url="redis://user@redis:6379/0")
