"""The log of services, in processes of their own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.services import Service, redis_server, redis_url  # noqa: F401

pytestmark = pytest.mark.integration

RELIBRA = [sys.executable, "-m", "relibra.cli"]


def test_a_log_of_json_has_no_other_line(redis_url: str, tmp_path: Path) -> None:  # noqa: F811
    for verb in ("planner", "status"):
        settings = {"RELIBRA_LOG_FORMAT": "json", "GRPC_VERBOSITY": "debug", "GRPC_TRACE": "tcp"}
        service = Service(verb, redis_url, tmp_path, **settings)
        assert service.stop() == 0
        lines = [json.loads(line) for line in service.log().splitlines()]
        assert any(service.address in line["message"] for line in lines), verb
        # gRPC's core, which only the planner has, writes text to standard error by itself.
        assert any(line["logger"] == "stderr" for line in lines) == (verb == "planner")


def test_a_line_that_ends_with_a_zero_byte_is_not_the_last() -> None:
    code = (
        "import os; from relibra.service_log import take_over_stderr; take_over_stderr();"
        "os.write(2, b'first\\0\\n'); os.write(2, b'second\\n'); os.write(2, b'third')"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "RELIBRA_LOG_FORMAT": "json"},
    )
    assert [json.loads(line)["message"] for line in ended.stderr.splitlines()] == ["first\0", "second", "third"]


def test_why_a_service_does_not_start_is_a_line_of_its_log(tmp_path: Path) -> None:
    command = [*RELIBRA, "planner", "--redis-url", f"unix://{tmp_path}/none"]
    ended = subprocess.run(
        command, capture_output=True, text=True, check=False, env={"RELIBRA_LOG_FORMAT": "json", "PATH": "/usr/bin"}
    )
    assert ended.returncode == 2
    (line,) = map(json.loads, ended.stderr.splitlines())
    assert line["level"] == "ERROR"
    assert line["message"].startswith("Unavailable: Redis does not serve")
