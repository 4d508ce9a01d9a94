"""What starts the ranks of a training, notices that they died, and starts them again."""

import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Queue

from harness import child_process
from harness.restarts.run import GENERATION, LAUNCH, Run
from harness.services import eventually

TRAINER = Path(__file__).with_name("trainer.py")
DEADLINE_S = 120.0


class Zygote:
    """A process that has imported megatron, and forks launchers and ranks."""

    def __init__(self, log: Path) -> None:
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                child_process.command("harness.restarts.zygote"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                # Compiling megatron's small fused functions takes longer than running them in these tests.
                # By default torchrun keeps the store of dead workers, and new ones read old addresses there.
                env=child_process.environment(
                    OMP_NUM_THREADS="1", TORCHDYNAMO_DISABLE="1", TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1"
                ),
                start_new_session=True,
            )
        self._statuses: dict[int, int] = {}
        self._started: Queue[int] = Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def start(self, *, is_rank: bool, arguments: list[str], environment: dict[str, str], log: Path) -> int:
        """Fork a rank, or a torchrun; return its process id."""
        assert self._process.stdin is not None
        order = {"is_rank": is_rank, "arguments": arguments, "environment": environment, "log": str(log)}
        self._process.stdin.write((json.dumps(order) + "\n").encode())
        self._process.stdin.flush()
        return self._started.get(timeout=DEADLINE_S)

    def status(self, pid: int) -> int | None:
        """Return the exit status of a process; None while it runs."""
        return self._statuses.get(pid)

    def stop(self) -> None:
        """End the zygote; what it forked goes on."""
        self._process.kill()
        self._process.wait()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            told = json.loads(line)
            if "status" in told:
                self._statuses[told["pid"]] = told["status"]
            else:
                self._started.put(told["pid"])


class Started:
    """The processes of one start of a launcher: torchrun, or one pod per rank."""

    def __init__(self, zygote: Zygote, run: Run, index: int) -> None:
        self._zygote, self._run = zygote, run
        launch = run.launch(index)
        generation = len(run.records("killed"))
        settings = str(run.save())
        self._log = run.folder / f"launch-{index}.log"
        environment = {GENERATION: str(generation), LAUNCH: str(index)}
        num_ranks = launch.cluster.num_ranks * launch.cluster.num_ep_groups
        if launch.launcher == "torchrun":
            # Every further death is a restart of this launcher, up to one that takes the launcher along.
            restarts = len(run.kills) - generation
            options = ["--standalone", f"--nproc-per-node={num_ranks}", f"--max-restarts={restarts}"]
            arguments = [*options, "--run-path", "--start-method=fork", str(TRAINER), settings]
            self.pids = [zygote.start(is_rank=False, arguments=arguments, environment=environment, log=self._log)]
        else:
            environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": _free_port(), "WORLD_SIZE": str(num_ranks)}
            self.pids = [
                zygote.start(
                    is_rank=True, arguments=[settings], environment=environment | {"RANK": str(rank)}, log=self._log
                )
                for rank in range(num_ranks)
            ]

    @property
    def exit_statuses(self) -> list[int | None]:
        """The exit status of each process; None while it runs."""
        return [self._zygote.status(pid) for pid in self.pids]

    def is_over(self) -> bool:
        """Return whether a process died, or all have finished. After a death, schedulers end the other processes."""
        return any(self.exit_statuses) or self.has_finished()

    def has_finished(self) -> bool:
        """Return whether all processes ended well."""
        return all(status == 0 for status in self.exit_statuses)

    def log(self) -> str:
        """Return the end of what the processes wrote."""
        return self._log.read_text(errors="replace")[-4000:]

    def end(self) -> None:
        """Kill what is left: the processes of this start, and ranks of all earlier ones."""
        ranks = {each["pid"] for each in self._run.records("started")}
        for pid in (*self.pids, *ranks):
            if _is_of_zygote(pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        eventually(lambda: None not in self.exit_statuses)


@contextmanager
def started(zygote: Zygote, run: Run, index: int = 0) -> Iterator[Started]:
    """Start the launcher of a training once; kill its processes at the end."""
    launch = Started(zygote, run, index)
    try:
        yield launch
    finally:
        launch.end()


def train_to_the_end(zygote: Zygote, run: Run) -> None:
    """Start the launcher of a training again and again until all of its ranks have finished."""
    for index in range(len(run.kills) + 1):
        num_killed = len(run.records("killed"))
        with started(zygote, run, index) as launch:
            wait_until_over(run, launch)
            if launch.has_finished():
                return
        assert len(run.records("killed")) > num_killed, f"ended without being killed:\n{launch.log()}"
    raise AssertionError(f"not finished after {len(run.kills)} deaths:\n{launch.log()}")


def wait_until_over(run: Run, launch: Started) -> None:
    """Wait while the ranks of a launch write down that something happens."""
    num_records, deadline = -1, 0.0
    while not launch.is_over():
        if (seen := len(run.records())) != num_records:
            num_records, deadline = seen, time.monotonic() + DEADLINE_S
        assert time.monotonic() < deadline, f"nothing happened for {DEADLINE_S:g} s:\n{launch.log()}"
        time.sleep(0.05)


def _is_of_zygote(pid: int) -> bool:
    """Return whether a process is a fork of a zygote; process ids are used again."""
    try:
        return b"harness.restarts.zygote" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _free_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])
