"""The commands of the images in a new virtual environment, so that no container engine is needed."""

import json
import os
import re
import subprocess
import sys
import sysconfig
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from harness.chart_cases import objects_of
from harness.services import Service
from relibra.store import EmbeddedRedis

_REPOSITORY = Path(__file__).parents[2]
_START_TIMEOUT_S = 240.0


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel of this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, _REPOSITORY]
    subprocess.run(build, check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def _install(image: str, wheel: Path, folder: Path, *, packages: bool = True) -> None:
    """Create the virtual environment of a Dockerfile, with the pip commands that it has.

    The environment gets neither a pip nor compiled modules: both take longer than the rest, and no test needs them.
    """
    dockerfile = (_REPOSITORY / "deploy" / "docker" / f"{image}.Dockerfile").read_text()
    locked = re.search(r"/opt/relibra/bin/pip install --no-cache-dir (--require-hashes --no-deps -r \S+)", dockerfile)[
        1
    ]
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    pip = [sys.executable, "-m", "pip", "--python", folder / "bin" / "python"]
    install = [*pip, "install", "--quiet", "--no-compile"]
    if packages:
        subprocess.run([*install, *locked.split()], cwd=_REPOSITORY, check=True)
    subprocess.run([*install, "--no-index", "--no-deps", wheel], check=True)
    if packages:
        subprocess.run([*pip, "check"], check=True)


def _compose():
    return yaml.safe_load((_REPOSITORY / "docker-compose.yml").read_text())["services"]


@pytest.fixture(scope="module")
def environment(tmp_path_factory, wheel):
    folder = tmp_path_factory.mktemp("image")
    _install("services", wheel, folder)
    return folder


def _commands():
    compose = _compose()
    pods = {
        each["metadata"]["name"]: each["spec"]["template"]
        for each in objects_of("defaults")
        if each["kind"] == "Deployment"
    }
    for verb in ("planner", "status"):
        yield f"kubernetes {verb}", pods[verb]["spec"]["containers"][0]["args"]
        yield f"compose {verb}", compose["planner-1" if verb == "planner" else verb]["command"]


@pytest.mark.integration
def test_services_start_from_a_fresh_environment_without_torch(environment, tmp_path):
    relibra = environment / "bin" / "relibra"
    torch = subprocess.run([environment / "bin" / "python", "-c", "import torch"], capture_output=True, check=False)
    assert torch.returncode != 0
    with EmbeddedRedis(tmp_path / "redis") as redis:
        for name, command in _commands():
            ready = tmp_path / f"{name}.json"
            # Free ports on loopback; RELIBRA_INSECURE as in the overlay dev.
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
                    assert b'id="relibrajobstalled"' in urllib.request.urlopen(f"{url}/runbook", timeout=10).read()
            finally:
                process.terminate()
                assert process.wait(30) == 0, name


@pytest.mark.integration
@pytest.mark.distributed
def test_the_demo_trains_with_the_planner_of_compose_from_a_fresh_environment(tmp_path, wheel):
    # Only relibra is installed anew. Its dependencies, above all torch, are large and come from this environment.
    folder = tmp_path / "image"
    _install("demo", wheel, folder, packages=False)
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
