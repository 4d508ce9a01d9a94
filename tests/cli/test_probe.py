"""The health check of a container, against a planner that serves, hangs or is gone."""

import json
import os
import signal
from pathlib import Path

import pytest

from harness.services import Service, eventually
from relibra.cli import probe

pytestmark = pytest.mark.integration


def test_a_planner_that_hangs_is_ended_so_that_its_container_restarts(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    planner = Service("planner", redis_url, tmp_path, RELIBRA_METRICS_PORT="0")
    try:
        url = planner.log().partition("metrics on ")[2].split()[0].removesuffix("/metrics")
        arguments = [f"{url}/readyz", f"{url}/livez", str(tmp_path / "planner.json")]
        eventually(lambda: probe.main(arguments) == 0)
        os.kill(planner.process.pid, signal.SIGSTOP)
        monkeypatch.setattr(probe, "HUNG_AFTER_S", 1.0)
        assert probe.main(arguments) == 1
        assert f"process {planner.process.pid} was ended" in capsys.readouterr().out
        assert planner.process.wait(60) == -signal.SIGKILL
        assert probe.main(arguments) == 1
        assert "nothing listens at" in capsys.readouterr().out
    finally:
        if planner.process.poll() is None:
            planner.kill()


def test_the_first_process_of_a_container_cannot_be_ended_from_inside(tmp_path: Path) -> None:
    ready_file = tmp_path / "ready.json"
    ready_file.write_text(json.dumps({"planner": "0.0.0.0:7420", "pids": {"planner": 1}}))
    assert "give the container an init" in probe._end(ready_file)
    assert "cannot be ended: [Errno 2]" in probe._end(tmp_path / "missing.json")
