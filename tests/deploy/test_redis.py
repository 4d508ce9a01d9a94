"""Redis as docs/redis.md saves and restores it, with a real server."""

import os
import re
import shutil
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from harness.doc_blocks import blocks
from harness.redis_deployments import DURABLE, Node
from harness.services import CLUSTER, MODEL, PARAMS, Loop, run  # noqa: F401
from harness.step_samples import PLAN, lease_of, published_plans
from relibra.errors import Unauthenticated
from relibra.store import JobRecord, Role, Store
from relibra.store.embedded import find_redis_server
from relibra.store.tokens import Identities

pytestmark = pytest.mark.integration

DEPLOY = Path(__file__).parents[2] / "deploy"


@pytest.fixture(autouse=True)
def tools() -> None:
    """What the page asks for."""
    said = subprocess.run([find_redis_server(), "--version"], capture_output=True, text=True, check=True).stdout
    if int(re.findall(r"v=(\d+)", said)[0]) < 7 or not (shutil.which("redis-cli") and shutil.which("redis-check-rdb")):
        pytest.skip("Redis 7 with redis-cli and redis-check-rdb is not installed; on Debian it is redis-server")


def _commands(first: str) -> str:
    """Return the block of the page whose first command is `first`."""
    (text,) = [
        each.text for each in blocks("docs/redis.md") if each.text.startswith(f"{first} ") and "/etc" not in each.text
    ]
    return text


def _publish(store: Store, run: Loop, job: JobRecord, step: int) -> int:  # noqa: F811
    """Plan a step; return the version of the plan."""
    return run(store.publish_plan(lease_of(store, run, job, step), PLAN)).version


def test_a_backup_brings_back_what_it_held_and_nothing_since(run: Loop, tmp_path: Path) -> None:  # noqa: F811
    server = Node(tmp_path / "data", *DURABLE, "--maxmemory-policy", "noeviction")

    def shell(commands: str) -> None:
        at = commands.replace("-p 6379", f"-p {server.port}")
        subprocess.run(["bash", "-ec", at], cwd=tmp_path, check=True, stdout=subprocess.DEVNULL)

    def opened() -> Store:
        store = Store.open(f"redis://127.0.0.1:{server.port}")
        run(store.check())
        return store

    with ExitStack() as running:
        running.callback(server.stop)
        store = opened()
        job = run(store.register_job("job", MODEL, CLUSTER, PARAMS))
        assert _publish(store, run, job, 1) == 1
        record, token = run(store.create_token("job", Role.TRAINER))
        shell(_commands("redis-cli"))
        assert _publish(store, run, job, 2) == 2
        run(store.revoke_token(record.token_id))
        _, later_token = run(store.create_token("job", Role.TRAINER))
        run(store.remove_job("job"))
        later = run(store.register_job("job", MODEL, CLUSTER, PARAMS))
        run(store.close())
        server.kill()
        shutil.rmtree(tmp_path / "data")

        shell(_commands("mkdir"))
        server.start()
        store = opened()
        assert [each.step for each in run(published_plans(store, run(store.get_job("job"))))] == [1]
        assert run(Identities(store).identify(token)) == record, "the page says that a revoked token is valid again"
        with pytest.raises(Unauthenticated):
            run(Identities(store).identify(later_token))
        restarted = run(store.register_job("job", MODEL, CLUSTER, PARAMS, known_epoch=later.epoch))
        assert restarted.epoch > later.epoch > job.epoch
        # Later writes are durable too.
        assert _publish(store, run, restarted, 1) == 1
        run(store.close())
        server.kill()
        server.start()
        store = opened()
        assert run(store.get_job("job")).epoch == restarted.epoch
        run(store.close())


def test_the_nightly_backup_keeps_the_newest_snapshots(tmp_path: Path) -> None:
    """The container's command, with a folder of this machine in place of the volume."""
    (job, _) = yaml.safe_load_all((DEPLOY / "kubernetes" / "team" / "backup.yaml").read_text())
    (container,) = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    (folder := tmp_path / "backup").mkdir()
    for day in range(1, 16):
        (folder / f"relibra-2026-01-{day:02}T0300.rdb").touch()
        os.utime(folder / f"relibra-2026-01-{day:02}T0300.rdb", (day * 86_400, day * 86_400))
    server = Node(tmp_path / "data", *DURABLE, "--maxmemory-policy", "noeviction")
    try:
        command = [*container["command"][:2], container["command"][2].replace("/backup", str(folder))]
        environment = os.environ | {"RELIBRA_REDIS_URL": f"redis://127.0.0.1:{server.port}"}
        subprocess.run(command, env=environment, check=True, capture_output=True)
    finally:
        server.stop()
    kept = sorted(folder.iterdir())
    assert [path.name for path in kept[:13]] == [f"relibra-2026-01-{day:02}T0300.rdb" for day in range(3, 16)]
    assert len(kept) == 14
    subprocess.run(["redis-check-rdb", str(kept[-1])], check=True, capture_output=True)
