"""The commands of the images in a new virtual environment, so that no container engine is needed.

`make test-containers` shows the same with the images themselves.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import sysconfig
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from harness.services import Service
from relibra.store import EmbeddedRedis

_REPOSITORY = Path(__file__).parents[2]
_MANIFESTS = _REPOSITORY / "deploy" / "kubernetes" / "overlays" / "prod" / "relibra.yaml"
_START_TIMEOUT_S = 240.0
_MOST_MIB = {"status": 160.0, "services": 290.0}
"""What an image may add to a base of 150 MB, without compiled modules, to have less than 350 or 500 MB with them."""

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel of this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, _REPOSITORY]
    subprocess.run(build, check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def _create(folder: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)


def _pip(folder: Path, *arguments: "str | Path") -> None:
    """Run pip of this environment for another one, as the Dockerfiles do."""
    command = [sys.executable, "-m", "pip", "--python", folder / "bin" / "python", *arguments]
    subprocess.run(command, cwd=_REPOSITORY, check=True)


def _install(folder: Path, *arguments: "str | Path") -> None:
    """Install without compiled modules, which take longer than the rest and which no test needs."""
    _pip(folder, "install", "--quiet", "--no-compile", *arguments)


def _compose():
    return yaml.safe_load((_REPOSITORY / "docker-compose.yml").read_text())["services"]


def _commands(service: str) -> Iterator[tuple[str, list[str]]]:
    compose = _compose()
    pods = {
        each["metadata"]["name"]: each["spec"]["template"]
        for each in yaml.safe_load_all(_MANIFESTS.read_text())
        if each and each["kind"] == "Deployment"
    }
    yield f"kubernetes {service}", pods[service]["spec"]["containers"][0]["args"]
    yield f"compose {service}", compose["planner-1" if service == "planner" else service]["command"]


def _start_and_stop(environment: Path, service: str, redis_url: str) -> None:
    for name, command in _commands(service):
        ready = environment / f"{name}.json"
        # Free ports on loopback; RELIBRA_INSECURE as in the overlay dev.
        arguments = ["127.0.0.1" if each == "0.0.0.0" else re.sub(r"^74\d\d$", "0", each) for each in command]
        process = subprocess.Popen(
            [environment / "bin" / "relibra", *arguments, "--ready-file", ready],
            env=os.environ | {"RELIBRA_REDIS_URL": redis_url, "RELIBRA_INSECURE": "true"},
            cwd=environment,
        )
        try:
            deadline = time.monotonic() + _START_TIMEOUT_S
            while not ready.exists():
                assert process.poll() is None, name
                assert time.monotonic() < deadline, name
                time.sleep(0.05)
            if url := json.loads(ready.read_text()).get("status"):
                assert urllib.request.urlopen(f"{url}/readyz", timeout=10).status == 200
                assert b'id="relibrajobstalled"' in urllib.request.urlopen(f"{url}/runbook", timeout=10).read()
        finally:
            process.terminate()
            assert process.wait(30) == 0, name


def _size_mib(folder: Path) -> float:
    """Return the size without compiled modules, which Python adds as it imports others."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.suffix != ".pyc") / 2**20


@pytest.mark.integration
def test_services_start_from_a_fresh_environment_with_the_packages_of_their_image(wheel: Path, tmp_path: Path) -> None:
    dockerfile = (_REPOSITORY / "deploy" / "docker" / "services.Dockerfile").read_text()
    folder = tmp_path / "image"
    _create(folder)
    with EmbeddedRedis(tmp_path / "redis") as redis:
        for image, service, absent in (("status", "status", "numba"), ("services", "planner", "torch")):
            # The second image begins with the packages of the first.
            ((packages, trim),) = re.findall(
                rf"(--require-hashes --no-deps -r deploy/locks/{image}\.txt) \\\n    && (.*)", dockerfile
            )
            _install(folder, *packages.split())
            subprocess.run(trim.replace("/opt/relibra", shlex.quote(str(folder))), shell=True, check=True)
            _install(folder, "--no-index", "--no-deps", wheel)
            _pip(folder, "check")
            found = subprocess.run([folder / "bin" / "python", "-c", f"import {absent}"], stderr=subprocess.DEVNULL)
            assert found.returncode != 0, f"{absent} is in the image {image}"
            assert _size_mib(folder) < _MOST_MIB[image], image
            _start_and_stop(folder, service, redis.url)


@pytest.mark.integration
@pytest.mark.distributed
def test_the_demo_trains_with_the_planner_of_compose_from_a_fresh_environment(tmp_path, wheel):
    # Only relibra is installed anew. Its dependencies, above all torch, are large and come from this environment.
    folder = tmp_path / "image"
    _create(folder)
    _install(folder, "--no-index", "--no-deps", wheel)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "needed.pth").write_text(sysconfig.get_path("purelib"))
    where = [folder / "bin" / "python", "-c", "import relibra.demo as it; print(it.__file__)"]
    assert subprocess.run(where, capture_output=True, text=True, check=True).stdout.startswith(str(folder))
    dockerfile = (_REPOSITORY / "deploy" / "docker" / "demo.Dockerfile").read_text()
    verb, *options = json.loads(re.search(r"^ENTRYPOINT (.*)$", dockerfile, re.MULTILINE)[1])
    with EmbeddedRedis(tmp_path / "redis") as redis, ExitStack() as running:
        theirs = {}
        for name, address in (("planner", "planner:7420"), ("status", "http://status:7421")):
            service = Service(name, redis.url, tmp_path)
            running.callback(service.stop)
            theirs[address] = service.address
        command = [theirs.get(each, each) for each in _compose()["demo-a"]["command"]]
        assert set(theirs.values()) <= set(command)
        subprocess.run([folder / "bin" / verb, *options, *command, "--steps", "1"], cwd=tmp_path, check=True)
