"""The environment with a real engine, and whole jobs that ran there."""

import os
import subprocess
import threading
from pathlib import Path

import pytest

from harness import child_process
from harness.services import Service, eventually, planner, redis_server, redis_url, run, shared_planner  # noqa: F401
from harness.whole_job import skyrl_job, verl_fully_async, verl_job
from harness.whole_job.job import Outcome
from relibra.store.embedded import EmbeddedRedis

ENVIRONMENT = Path(__file__).parents[2] / os.environ.get("RELIBRA_WHOLE_JOB_VENV", ".venv-whole-job")


@pytest.fixture(scope="session")
def rollout_python() -> str:
    """Return the interpreter of the environment with frameworks and vLLM."""
    if not (ENVIRONMENT / "ready").exists():
        pytest.skip("no environment with a rollout engine: make test-rollout builds it in .venv-whole-job")
    return str(ENVIRONMENT / "bin" / "python")


@pytest.fixture(scope="session")
def prepared(rollout_python: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a model, prompts and an agent loop."""
    folder = tmp_path_factory.mktemp("whole-job")
    environment = child_process.environment(CUDA_VISIBLE_DEVICES="", VERL_USE_EXTERNAL_MODULES="")
    subprocess.run([rollout_python, "-m", "harness.whole_job.prepare", str(folder)], check=True, env=environment)
    return folder


@pytest.fixture(scope="session")
def balanced(rollout_python: str, prepared: Path, shared_planner: Service) -> Outcome:  # noqa: F811
    """A job with the plug-in, whose samples are kept."""
    return verl_job.Job(folder=prepared, name="balanced", planner=shared_planner.address).run(rollout_python)


@pytest.fixture(scope="session")
def plain(rollout_python: str, prepared: Path, balanced: Outcome) -> Outcome:
    """verl alone, on the same samples."""
    return verl_job.Job(folder=prepared, name="plain", replays=balanced.folder.name).run(rollout_python)


STEPS_OF_DRIFTER, SAVED, PLANNED = 4, 2, 3
"""The steps of the job without replay, the step after which it saves, and those that its planner survives."""
WITHOUT_REPLAY = "actor_rollout_ref.actor.megatron.router_replay.mode=disabled"
WITHOUT_RECORDS = (WITHOUT_REPLAY, "actor_rollout_ref.rollout.enable_rollout_routing_replay=False")


@pytest.fixture(scope="session")
def drifter(
    rollout_python: str,
    prepared: Path,
    redis_server: EmbeddedRedis,  # noqa: F811
    tmp_path_factory: pytest.TempPathFactory,
) -> Outcome:
    """A job without replay on two machines, which saves a checkpoint, and whose planner is killed."""
    mortal = Service("planner", redis_server.url, tmp_path_factory.mktemp("mortal"))
    job = verl_job.Job(
        folder=prepared,
        name="drifter",
        planner=mortal.address,
        num_steps=STEPS_OF_DRIFTER,
        own_machines=True,
        settings=(*WITHOUT_RECORDS, f"trainer.save_freq={SAVED}"),
    )

    def kill() -> None:
        eventually(lambda: len(Outcome(folder=prepared / job.name, code=None).metrics) >= PLANNED, within_s=600)
        mortal.kill()

    killer = threading.Thread(target=kill)
    killer.start()
    outcome = job.run(rollout_python)
    killer.join()
    return outcome


@pytest.fixture(scope="session")
def resumed(rollout_python: str, prepared: Path, drifter: Outcome) -> Outcome:
    """verl alone, which goes on from that checkpoint on the same samples."""
    job = verl_job.Job(
        folder=prepared,
        name="resumed",
        replays=drifter.folder.name,
        num_steps=STEPS_OF_DRIFTER,
        settings=(
            *WITHOUT_RECORDS,
            "actor_rollout_ref.actor.megatron.dist_ckpt_optim_fully_reshardable=True",
            "trainer.resume_mode=resume_path",
            f"trainer.resume_from_path={drifter.folder}/global_step_{SAVED}",
        ),
    )
    return job.run(rollout_python)


@pytest.fixture(scope="session")
def asynchronous(rollout_python: str, prepared: Path, shared_planner: Service) -> Outcome:  # noqa: F811
    """A job of verl's asynchronous trainer, which generates the samples of later steps while it trains."""
    job = verl_job.Job(
        folder=prepared,
        name="asynchronous",
        planner=shared_planner.address,
        keeps=False,
        settings=("trainer.v1.trainer_mode=colocate_async",),
    )
    return job.run(rollout_python)


@pytest.fixture(scope="session")
def recorded(rollout_python: str, prepared: Path, shared_planner: Service) -> Outcome:  # noqa: F811
    """A job on two machines whose server records routing, which nothing replays."""
    job = verl_job.Job(
        folder=prepared,
        name="recorded",
        planner=shared_planner.address,
        own_machines=True,
        keeps=False,
        settings=(WITHOUT_REPLAY,),
    )
    return job.run(rollout_python)


@pytest.fixture(scope="session")
def fully_async(rollout_python: str, prepared: Path, shared_planner: Service) -> Outcome:  # noqa: F811
    """A job of verl's `fully_async` on two machines, whose samples are kept."""
    job = verl_fully_async.FullyAsyncJob(
        folder=prepared, name="fully-async", planner=shared_planner.address, own_machines=True
    )
    return job.run(rollout_python)


@pytest.fixture(scope="session")
def fully_async_plain(rollout_python: str, prepared: Path, fully_async: Outcome) -> Outcome:
    """verl's `fully_async` alone, on the same samples."""
    job = verl_fully_async.FullyAsyncJob(folder=prepared, name="fully-async-plain", replays=fully_async.folder.name)
    return job.run(rollout_python)


@pytest.fixture(scope="session")
def skyrl_balanced(rollout_python: str, prepared: Path, shared_planner: Service) -> Outcome:  # noqa: F811
    """A job of SkyRL with the plug-in, whose samples are kept."""
    job = skyrl_job.Job(folder=prepared, name="skyrl-balanced", planner=shared_planner.address)
    return job.run(rollout_python)


@pytest.fixture(scope="session")
def skyrl_plain(rollout_python: str, prepared: Path, skyrl_balanced: Outcome) -> Outcome:
    """SkyRL alone, on the same samples."""
    return skyrl_job.Job(folder=prepared, name="skyrl-plain", replays=skyrl_balanced.folder.name).run(rollout_python)
