"""Figures of a job in the run of its own tracker: a real status service, and stand-ins for the trackers.

The stand-ins keep what the trackers promise: W&B has one row for each step of the training loop, MLflow's client takes
a run id from any thread, and TensorBoard's writer takes one number.
"""

import logging
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace

import pytest

from harness.services import CLUSTER, MODEL, Loop, Service, eventually
from harness.watched_job import WatchedJob
from relibra.errors import InvalidInput
from relibra.integrations.tracked_runs import active_runs
from relibra.integrations.tracking import Mark, ended_steps, track
from relibra.planning.launch import Launch
from relibra.store import EmbeddedRedis, Store

POLL_S = 0.05


class Writer:
    """TensorBoard."""

    def __init__(self) -> None:
        self.scalars: dict[tuple[str, int], float] = {}
        self.steps: list[int] = []

    def add_scalar(self, name: str, value: float, step: int) -> None:
        if step not in self.steps:
            self.steps.append(step)
        assert (name, step) not in self.scalars, "logged twice"
        self.scalars[name, step] = value


class WandbLike:
    """W&B: figures with `commit=False` wait for the row that the training loop logs next."""

    def __init__(self) -> None:
        self.rows, self.defined, self.is_finished = [], [], False
        self._step, self._row = 0, dict[str, float]()

    @property
    def step(self) -> int:
        if self.is_finished:
            raise RuntimeError("the run is finished")
        return self._step

    def define_metric(self, name: str, step_metric: str | None = None) -> None:
        self.defined.append((name, step_metric))

    def log(self, figures: dict[str, float], commit: bool = True) -> None:
        self._row |= figures
        if commit:
            self.rows.append(self._row)
            self._row, self._step = {}, self._step + 1

    @property
    def logged(self) -> list[int]:
        return [row["relibra/step"] for row in (*self.rows, self._row) if "relibra/step" in row]


@pytest.fixture
def job(store: Store, run: Loop) -> WatchedJob:
    return WatchedJob(store, "job", model=MODEL, cluster=CLUSTER, num_micro_batches=2)


@pytest.fixture(scope="module")
def service(redis_server: EmbeddedRedis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    service = Service("status", redis_server.url, tmp_path_factory.mktemp("watched-status"))
    yield service
    service.stop()


async def train(job: WatchedJob, *steps: int) -> None:
    for step in steps:
        await job.report(step, await job.plan(step))


def test_every_step_is_logged_once_from_the_call_on(
    service: Service, job: WatchedJob, run: Loop, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    writer = Writer()
    with track("job", run=writer, url=service.address, poll_interval_s=POLL_S):
        eventually(lambda: "is not registered yet" in caplog.text)
        run(job.register())
        run(train(job, 1, 2))
        eventually(lambda: writer.steps == [1, 2])
        run(job.report(3, run(job.plan(3)), ranks=[0]))  # the other ranks died
        run(train(job, 4))
        eventually(lambda: ("relibra/num_moved_experts", 4) in writer.scalars)
        assert writer.steps == [1, 2, 3, 4]
        # Steps before 4 stay logged, and 4 is trained again.
        job.record = run(store.rollback("job", job.record.epoch, 4))
        writer.scalars = {}
        run(train(job, 4, 5))
        eventually(lambda: ("relibra/num_moved_experts", 5) in writer.scalars)
        assert {step for _, step in writer.scalars} == {4, 5}
    assert "is not in TensorBoard" not in caplog.text  # the thread survives what the writer raises
    assert writer.scalars["relibra/imbalance_before", 5] == job.plans[5].prediction.imbalance_before
    with track("job", run=(later := Writer()), url=service.address, poll_interval_s=POLL_S):
        eventually(lambda: "from step 6 on" in caplog.text)
        run(job.restart(Launch(token="two")))
        run(train(job, 1))
    assert later.steps == [1]


def test_wandb_gets_one_step_in_each_row_of_the_training_loop(
    service: Service, job: WatchedJob, run: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    wandb = WandbLike()
    run(job.register())
    tracking = track("job", run=wandb, url=service.address, poll_interval_s=POLL_S)
    eventually(lambda: "are logged from step 0 on" in caplog.text)
    run(train(job, 1, 2, 3))
    eventually(lambda: wandb.logged == [1])
    assert wandb.step == 0, "the step of the training loop is its own"
    wandb.log({"loss": 0.5})
    eventually(lambda: wandb.logged == [1, 2])
    tracking.close()
    assert wandb.logged == [1, 2, 3]
    assert wandb.rows[0]["loss"] == 0.5
    assert ("relibra/*", "relibra/step") in wandb.defined


def test_S9_a_run_that_was_finished_costs_its_own_steps_only(
    service: Service, job: WatchedJob, run: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    wandb = WandbLike()
    run(job.register())
    with track("job", run=wandb, url=service.address, poll_interval_s=POLL_S):
        eventually(lambda: "are logged from step 0 on" in caplog.text)
        run(train(job, 1))
        eventually(lambda: wandb.logged == [1])
        wandb.is_finished = True
        run(train(job, 2, 3))
        lost = [f"step {step} of job job is not in W&B: the run is finished" for step in (2, 3)]
        eventually(lambda: all(each in caplog.text for each in lost))


def test_mlflow_gets_steps_from_another_thread(
    service: Service,
    job: WatchedJob,
    run: Loop,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    logged: list[tuple[str, str, float, int]] = []

    class Client:
        def log_metric(self, run_id: str, name: str, value: float, step: int) -> None:
            logged.append((run_id, name, value, step))

    mlflow = ModuleType("mlflow")
    mlflow.active_run = lambda: SimpleNamespace(info=SimpleNamespace(run_id="r1"))  # type: ignore[attr-defined]
    mlflow.MlflowClient = Client  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    monkeypatch.setenv("RELIBRA_STATUS_URL", service.address)
    run(job.register())
    tracking = track("job", poll_interval_s=POLL_S)
    eventually(lambda: "are logged from step 0 on" in caplog.text)
    run(train(job, 1))
    eventually(lambda: logged)
    tracking.close()
    assert {(run_id, step) for run_id, _, _, step in logged} == {("r1", 1)}


def test_S9_what_goes_wrong_is_a_warning_once_and_training_goes_on(
    service: Service,
    job: WatchedJob,
    run: Loop,
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken(Writer):
        def add_scalar(self, name: str, value: float, step: int) -> None:
            super().add_scalar(name, value, step)
            if step == 1:
                raise OSError("disk full")

    caplog.set_level(logging.INFO)
    with track("job", run=(writer := Broken()), url=service.address, poll_interval_s=POLL_S):
        eventually(lambda: "job 'job' is not registered yet" in caplog.text)
        run(job.register())
        run(train(job, 1))
        eventually(lambda: "step 1 of job job is not in TensorBoard: disk full" in caplog.text)
        service.kill()
        eventually(lambda: "no status service responds" in caplog.text)
        run(train(job, 2))
        service.start()
        eventually(lambda: writer.steps == [1, 2])
    assert caplog.text.count("no status service responds") == 1
    assert caplog.text.count("logged again") == 2


def test_a_process_without_a_run_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidInput, match=r"call wandb\.init or mlflow\.start_run first"):
        active_runs()
    wandb = ModuleType("wandb")
    wandb.run = WandbLike()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    assert [each.name for each in active_runs()] == ["W&B"]
    with pytest.raises(InvalidInput, match=r"run: expected a run of W&B or MLflow, or a SummaryWriter .* got a str"):
        track("job", run="tensorboard")


@pytest.mark.parametrize(
    ("complete", "after", "due"),
    [([], -1, []), ([2], -1, [1, 2]), ([2, 3], 2, [3]), ([1, 3], -1, [1, 2, 3]), ([1], 1, [])],
)
def test_a_step_has_ended_when_it_or_a_later_one_is_complete(complete: list[int], after: int, due: list[int]) -> None:
    points = [{"step": step, "is_complete": step in complete} for step in range(1, 5)]
    assert [each["step"] for each in ended_steps(points, after)] == due


def test_a_mark_moves_to_the_attempt_that_went_back_or_that_began_anew() -> None:
    mark = Mark(1, 7)
    assert mark.moved_to({"number": 1, "rolled_back_to": None}) == mark
    assert mark.moved_to({"number": 2, "rolled_back_to": 5}) == Mark(2, 4)
    assert mark.moved_to({"number": 2, "rolled_back_to": None}) == Mark(2, -1)
