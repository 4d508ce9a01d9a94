"""What the services image installs and starts, without a container engine: the same commands in a new environment."""

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
import yaml

from relibra.store import EmbeddedRedis

_REPOSITORY = Path(__file__).parents[2]
_START_TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """The virtual environment that the Dockerfile builds, from its own line."""
    dockerfile = (_REPOSITORY / "deploy" / "docker" / "services.Dockerfile").read_text()
    extra = re.search(r"pip install --no-cache-dir -c constraints\.txt '\.(\[.*\])'", dockerfile)[1]
    folder = tmp_path_factory.mktemp("image")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    install = [folder / "bin" / "pip", "install", "--quiet", "-c", "constraints.txt", f".{extra}"]
    subprocess.run(install, cwd=_REPOSITORY, check=True)
    return folder


def _commands():
    compose = yaml.safe_load((_REPOSITORY / "docker-compose.yml").read_text())["services"]
    base = _REPOSITORY / "deploy" / "kubernetes" / "base"
    for verb in ("planner", "status"):
        container = next(yaml.safe_load_all((base / f"{verb}.yaml").read_text()))["spec"]["template"]["spec"][
            "containers"
        ][0]
        yield f"kubernetes {verb}", container["args"]
        yield f"compose {verb}", compose["planner-1" if verb == "planner" else verb]["command"]


@pytest.mark.integration
@pytest.mark.timeout(300)
def test_services_start_from_a_fresh_environment_without_torch(environment, tmp_path):
    relibra = environment / "bin" / "relibra"
    torch = subprocess.run([environment / "bin" / "python", "-c", "import torch"], capture_output=True, check=False)
    assert torch.returncode != 0
    with EmbeddedRedis(tmp_path / "redis") as redis:
        for name, command in _commands():
            ready = tmp_path / f"{name}.json"
            # Any free ports, of this machine only; RELIBRA_INSECURE as the overlay for trying out sets it.
            arguments = ["127.0.0.1" if each == "0.0.0.0" else re.sub(r"^74\d\d$", "0", each) for each in command]
            process = subprocess.Popen(
                [relibra, *arguments, "--ready-file", ready],
                env=os.environ | {"RELIBRA_REDIS_URL": redis.url, "RELIBRA_INSECURE": "true"},
                cwd=tmp_path,
            )
            try:
                deadline = time.monotonic() + _START_TIMEOUT_S
                while not ready.exists():
                    assert process.poll() is None, name
                    assert time.monotonic() < deadline, name
                    time.sleep(0.05)
                if url := json.loads(ready.read_text()).get("status"):
                    assert urllib.request.urlopen(f"{url}/readyz", timeout=10).status == 200
            finally:
                process.terminate()
                assert process.wait(30) == 0, name
