"""Child processes of the demo: what they see of the host, and what the parent learns of their end."""

from collections.abc import Callable
from pathlib import Path

import pytest

from relibra.demo.worker import Worker
from relibra.errors import RelibraError

Start = Callable[[str], Worker]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Start a worker whose `main` has this body, on a host that offers a CUDA device."""
    pytest.importorskip("megatron")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.syspath_prepend(tmp_path)

    def start(body: str) -> Worker:
        (tmp_path / "probe_of_a_worker.py").write_text(f"import os\n\ndef main(pipe):\n    {body}\n")
        return Worker("the probe", "probe_of_a_worker")

    return start


@pytest.mark.long
def test_a_worker_runs_on_the_cpu_of_a_host_with_cuda_devices(start: Start) -> None:
    worker = start("import torch; pipe.send((os.environ['CUDA_VISIBLE_DEVICES'], torch.cuda.is_available()))")
    try:
        assert Worker.answers([worker]) == [("", False)]
    finally:
        worker.close()


def test_the_death_of_a_worker_is_reported_with_its_exit_status(start: Start) -> None:
    worker = start("pipe.recv(); os._exit(3)")
    try:
        worker.ask("work")
        with pytest.raises(RelibraError, match="the probe died with exit status 3"):
            Worker.answers([worker])
    finally:
        worker.close()
