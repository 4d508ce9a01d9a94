"""`examples/own_loop` runs as a user runs it: balanced from its first plan on, with the losses of plain training."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from harness.doc_blocks import REPOSITORY, python_of
from harness.services import START_TIMEOUT_S, Loop, Service, eventually
from relibra.planning.execution import Execution
from relibra.store import Store

FOLDER = REPOSITORY / "examples" / "own_loop"
NUM_STEPS = 20
SHOWN = re.compile(
    r"^step +\d+  loss (?P<loss>[\d.]+)  "
    r"(?:not balanced|imbalance (?P<imbalance>[\d.]+)  (?:no plan yet|plan \d+ with (?P<replicas>\d+) replicas))$",
    re.M,
)


def is_serving(planner: Service) -> bool:
    """Return whether the planner's solver is warm."""
    with grpc.insecure_channel(planner.address) as channel:
        answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=60)
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def train(copy: Path, planner: Service, job_id: str, mode: str, num_steps: int) -> list[re.Match[str]]:
    """Run the copied folder on two CPU ranks; return what it shows of each step."""
    settings = {"RELIBRA_PLANNER": planner.address, "RELIBRA_JOB": job_id, "RELIBRA_MODE": mode}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    ended = subprocess.run(
        [copy / "run.sh", str(num_steps)],
        capture_output=True,
        text=True,
        env=os.environ | settings | {"PATH": path, "CUDA_VISIBLE_DEVICES": ""},
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    shown = list(SHOWN.finditer(ended.stdout))
    assert len(shown) == num_steps, ended.stdout + ended.stderr
    return shown


def executed(planner: Service, job_id: str, step: int) -> Execution:
    """Return what all ranks reported of a step."""
    with Loop() as run:
        store = Store.open(planner.redis_url)
        job = run(store.get_job(job_id))
        (phase,) = eventually(lambda: run(store.get_executions(job, [step]))[0])
        run(store.close())
    return phase


def has_ended(planner: Service, job_id: str) -> bool:
    """Return whether the training of a job said that it ended."""
    with Loop() as run:
        store = Store.open(planner.redis_url)
        (attempt,) = run(store.list_attempts(job_id))
        run(store.close())
    return attempt.has_finished


def test_the_quick_start_shows_the_loop_of_the_example() -> None:
    (shown,) = python_of("docs/quick-start.md")
    assert f"\n\n\n{shown}\n\n" in (FOLDER / "train.py").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the folder."""
    return Path(shutil.copytree(FOLDER, tmp_path_factory.mktemp("copy") / "own_loop"))


@pytest.fixture(scope="module")
def balanced(copy: Path, shared_planner: Service) -> list[re.Match[str]]:
    """What the copy showed of each step that it trained with balancing."""
    eventually(lambda: is_serving(shared_planner), within_s=START_TIMEOUT_S)
    return train(copy, shared_planner, "own-loop", "balance", NUM_STEPS)


@pytest.mark.integration
@pytest.mark.distributed
def test_a_copy_of_the_folder_is_balanced_from_its_first_plan_on(
    balanced: list[re.Match[str]], shared_planner: Service
) -> None:
    is_planned = [bool(step["replicas"]) for step in balanced]
    assert any(is_planned)
    assert all(is_planned[is_planned.index(True) :])
    assert has_ended(shared_planner, "own-loop")
    last = executed(shared_planner, "own-loop", NUM_STEPS - 1)
    assert int(balanced[-1]["replicas"]) > 0
    assert last.imbalance < last.imbalance_plain
    assert float(balanced[-1]["imbalance"]) == pytest.approx(last.imbalance, abs=1e-3)


@pytest.mark.long
@pytest.mark.integration
@pytest.mark.distributed
def test_S5_a_copy_of_the_folder_trains_as_without_balancing(
    copy: Path, balanced: list[re.Match[str]], shared_planner: Service
) -> None:
    first = [bool(step["replicas"]) for step in balanced].index(True)
    num_compared = min(first + 5, NUM_STEPS)  # the loss of a step shows the gradients of those before
    script = copy / "train.py"
    script.write_text(script.read_text().replace("    job.close()\n", ""))
    plain = train(copy, shared_planner, "own-loop-observed", "observe", num_compared)
    assert has_ended(shared_planner, "own-loop-observed"), "the end of the process is that of the job"
    assert not any(step["imbalance"] for step in plain)
    for one, other in zip(balanced, plain, strict=False):
        assert float(one["loss"]) == pytest.approx(float(other["loss"]), rel=1e-5)
    observed = executed(shared_planner, "own-loop-observed", num_compared - 1)
    assert observed.imbalance == pytest.approx(
        executed(shared_planner, "own-loop", num_compared - 1).imbalance_plain, abs=0.01
    )
