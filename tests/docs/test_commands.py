"""The commands of all pages run as they stand, except for addresses; parts of commands that cannot run still exist."""

import asyncio
import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from redis import Redis
from typer.testing import CliRunner

from docs.command_line import commands
from harness.doc_blocks import ALL_BLOCKS, PAGES, REPOSITORY, Block
from harness.saved_responses import CONFIG, response
from harness.services import CLUSTER, MODEL, Service, eventually
from harness.watched_job import WatchedJob
from relibra.cli.app import app
from relibra.planning import PlanParams
from relibra.store import EmbeddedRedis, Role, Store
from relibra.store.keys import JobKeys

ELSEWHERE = {"relibra advise trace.npz --model gpt-oss-20b --nodes 1": "tests/integration/test_will_it_help.py"}
"""The test that runs a slow command and examines its answer."""
BASH = [block for block in ALL_BLOCKS if block.language == "bash"]
RUN = {
    page: [block for block in BASH if block.page == page and block.is_run] for page in sorted({b.page for b in BASH})
}
SERVICES = {"up": ("--port", "0", "--status-port", "0"), "planner": ("--port", "0"), "status": ("--port", "0")}


@dataclass(frozen=True)
class Desk:
    """A reader's terminal: files, running services, and the real values of the names that pages use."""

    folder: Path
    stands_for: dict[str, str]
    done: set[str]

    def command(self, line: str) -> list[str]:
        for stands, is_really in self.stands_for.items():
            line = line.replace(stands, is_really)
        return shlex.split(line)


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    async def fill(url: str) -> str:
        async with Store.open(url) as store:
            job = WatchedJob(store, "my-job", model=MODEL, cluster=CLUSTER, num_micro_batches=2)
            await job.register()
            for step in (1, 2):
                await job.report(step, await job.plan(step))
            await store.register_job("old-job", MODEL, CLUSTER, PlanParams())
            return (await store.create_token("my-job", Role.TRAINER))[0].token_id

    folder = tmp_path_factory.mktemp("desk")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "responses.jsonl").write_text("".join(json.dumps(response(index)) + "\n" for index in range(48)))
    (folder / "arguments.txt").write_text("--moe-token-dispatcher-type alltoall --moe-enable-routing-replay")
    (folder / "run-training.sh").write_text(
        "python3 train.py --hf-checkpoint /models/Qwen3-30B-A3B --expert-model-parallel-size 8"
    )
    sizes = {"weight_size_bytes": 9_437_184, "expert_tokens": [1, 1024, 8192], "expert_us": [5.0, 30.0, 210.0]}
    expert = {"preset": "qwen3-30b-a3b", "hidden_size": 2048} | sizes
    (folder / "gpu-h100.json").write_text(json.dumps({"machine": {"device": "a device"}, "experts": [expert]}))
    recorded = CliRunner().invoke(
        app,
        ["record", f"{folder}/responses.jsonl", "--model-config", f"{folder}/config.json", "-o", f"{folder}/trace.npz"],
    )
    assert recorded.exit_code == 0, recorded.output
    shutil.copy(folder / "trace.npz", folder / "step.npz")
    with EmbeddedRedis(folder / "redis") as redis:
        token_id = asyncio.run(fill(redis.url))
        with Redis.from_url(redis.url) as client:
            client.hincrby(JobKeys("old-job").of("job"), "seen_at", -3_600_000)
        services = [Service(verb, redis.url, folder) for verb in ("planner", "status")]
        planner, status = (each.address for each in services)
        stands_for = {
            "redis://127.0.0.1:6379": redis.url,
            "rediss://…": redis.url,
            "127.0.0.1:7420": planner,
            "http://127.0.0.1:7421": status,
            "0.0.0.0": "127.0.0.1",
            "1f0c22ab": token_id,
        }
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            for name, value in {"REDIS_URL": redis.url, "STATUS_URL": status, "PLANNER": planner}.items():
                patch.setenv(f"RELIBRA_{name}", value)
            yield Desk(folder, stands_for, set())
        for each in services:
            each.stop()


@pytest.mark.long
@pytest.mark.integration
@pytest.mark.parametrize("page", [page for page, blocks in RUN.items() if blocks])
def test_the_commands_of_a_page_do_what_they_say(page: str, desk: Desk) -> None:
    for block in RUN[page]:
        for line in block.commands:
            if line not in ELSEWHERE and line not in desk.done:
                run(desk, line, f"{page}:{block.line}")
                desk.done.add(line)


def run(desk: Desk, line: str, where: str) -> None:
    """Run a command to its end, or a service until it is ready."""
    program, *words = desk.command(line)
    assert program == "relibra", f"{where}: mark the block, or teach this test to run {program}"
    if words[0] not in SERVICES:
        ended = CliRunner().invoke(app, words)
        assert ended.exit_code == 0, f"{where}: {line}: {ended.output} {ended.exception}"
        return
    ready_file = desk.folder / "ready.json"
    ready_file.unlink(missing_ok=True)
    command = [sys.executable, "-m", "relibra.cli", *words, *SERVICES[words[0]], "--ready-file", str(ready_file)]
    with (desk.folder / "service.log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:

        def is_ready() -> bool:
            assert process.poll() is None, f"{where}: {line}: {Path(log.name).read_text()}"
            return ready_file.exists()

        try:
            eventually(is_ready, within_s=240)
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=40) == 0, f"{where}: {line}"
        finally:
            process.kill()


def test_tests_that_run_commands_elsewhere_read_them_from_the_page():
    for command, test in ELSEWHERE.items():
        assert any(command in block.commands for block in BASH)
        assert "doc_blocks" in (REPOSITORY / test).read_text(encoding="utf-8")


def spans(page: Path) -> list[str]:
    """Return the text between single backticks outside of blocks."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    return [" ".join(span.split()) for span in re.findall(r"(?<!`)`([^`]+)`(?!`)", text)]


@pytest.mark.parametrize("block", [block for block in BASH if not block.is_run], ids=lambda b: f"{b.page}:{b.line}")
def test_commands_that_are_not_run_are_understood(block: Block) -> None:
    for line in block.commands:
        understand(line)
        program, *words = shlex.split(line)
        if program == "relibra":
            (name,) = [name for name in commands() if f"{' '.join(words)} ".startswith(f"{name} ")]
            commands()[name].make_context(name, words[len(name.split()) :])


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_commands_in_sentences_are_understood(page: Path) -> None:
    for span in spans(page):
        understand(span)


def understand(line: str) -> None:
    """Check that everything a command names exists: verbs and options, targets, files, overlays, profiles."""
    for part in re.split(r" -- (?=relibra )| \| ", line):
        program, *words = part.split()
        if program == "relibra" and words and words[0].islower() and words[0].isalpha():
            found = [each for name, each in commands().items() if f"{' '.join(words)} ".startswith(f"{name} ")]
            is_group = any(name.startswith(f"{words[0]} ") for name in commands()) and len(words) == 1
            assert found or is_group, line
            known = {name for each in found for parameter in each.params for name in parameter.opts}
            assert {word for word in words if word.startswith("--")} <= known, line
        elif program == "make":
            makefile = (REPOSITORY / "Makefile").read_text()
            for target in words:
                assert "=" in target or re.search(rf"^{re.escape(target)}:", makefile, re.M), line
        elif program == "kubectl" and "-k" in words:
            assert "..." in line or (REPOSITORY / words[words.index("-k") + 1] / "kustomization.yaml").is_file(), line
        elif part.startswith("docker compose --profile"):
            services = yaml.safe_load((REPOSITORY / "docker-compose.yml").read_text())["services"].values()
            # The shell passes '*' as it stands, and Compose takes it for all profiles.
            assert words[2] == "'*'" or any(words[2] in each.get("profiles", ()) for each in services), line
        for script in re.findall(r"\bpython ([\w/]+\.py)", part):
            assert (REPOSITORY / script).is_file(), line
        for module in re.findall(r"\bpython -m (benchmarks[.\w]*)", part):
            path = REPOSITORY / module.replace(".", "/")
            assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file(), line
