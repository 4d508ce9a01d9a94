"""The services that the demo talks to: `relibra up` as a child process on free ports, or services already running."""

import json
import os
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relibra.errors import RelibraError
from relibra.tied_process import tie


@dataclass(frozen=True, slots=True)
class Services:
    """The addresses of the planner and the status service."""

    planner_address: str
    status_url: str

    def get(self, path: str) -> Any:
        """Read a JSON document from the status service."""
        with urllib.request.urlopen(self.status_url + path, timeout=10.0) as response:
            return json.load(response)


class OwnServices:
    """Context manager that runs `relibra up`; the log is `services.log` in the data directory."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._log = data_dir / "services.log"
        self._ready = data_dir / "ready.json"

    def __enter__(self) -> Services:
        self._data_dir.mkdir(parents=True, exist_ok=True)
        self._ready.unlink(missing_ok=True)
        command = [sys.executable, "-m", "relibra.cli", "up", "--port", "0", "--status-port", "0"]
        command += ["--data-dir", str(self._data_dir), "--ready-file", str(self._ready)]
        with self._log.open("w") as log:
            one_job = os.environ | {"RELIBRA_NUM_SOLVERS": "1"}
            self._process = subprocess.Popen(tie(command), stdout=log, stderr=subprocess.STDOUT, env=one_job)
        while not self._ready.exists():
            if self._process.poll() is not None:
                self.__exit__()
                raise RelibraError(
                    f"relibra up did not start; the end of its log says why:\n{self._log.read_text()[-2000:]}"
                )
            time.sleep(0.05)
        addresses = json.loads(self._ready.read_text())
        return Services(addresses["planner"], addresses["status"])

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(timeout=15.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
