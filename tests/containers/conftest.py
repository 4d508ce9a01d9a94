"""The Compose file on a Docker Engine: built, started, and removed at the end."""

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.container_stack import PROJECT, REPOSITORY, Stack


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip this folder unless `make test-containers` runs it."""
    if "RELIBRA_CONTAINERS" not in os.environ:
        here = f"{Path(__file__).parent}/"
        for each in items:
            if str(each.path).startswith(here):
                each.add_marker(pytest.mark.skip(reason="needs a container engine: make test-containers"))


@pytest.fixture(scope="session")
def stack() -> Iterator[Stack]:
    """Planners, status service and Redis, from images of this checkout."""
    stack = Stack()
    stack.compose("--profile", "*", "down", "--volumes")
    try:
        began_at = time.monotonic()
        stack.compose("--progress", "plain", "build")
        print(f"\nbuilt after {time.monotonic() - began_at:.0f} s")
        stack.compose("up", "--detach")
        print(f"all healthy {stack.wait_healthy():.1f} s after `up`")
        yield stack
    finally:
        ours = {each["image"] for each in stack.config()["services"].values() if each["image"].startswith("relibra/")}
        stack.compose("--profile", "*", "down", "--volumes")
        subprocess.run(["docker", "image", "rm", "--force", *ours], capture_output=True, check=False)


@pytest.fixture(scope="session", autouse=True)
def building_demo(stack: Stack) -> Iterator["subprocess.Popen[str]"]:
    """The build of the demo's image, which goes on while other tests wait for containers."""
    command = [
        "docker",
        "compose",
        "--project-name",
        PROJECT,
        "--profile",
        "demo",
        "--progress",
        "plain",
        "build",
        "demo-a",
    ]
    with subprocess.Popen(
        ["nice", *command], cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as build:
        yield build
        build.kill()


@pytest.fixture
def demo_image(building_demo: "subprocess.Popen[str]") -> None:
    """The image of the demo, built."""
    said, _ = building_demo.communicate()
    assert building_demo.returncode == 0, said[-3000:]
