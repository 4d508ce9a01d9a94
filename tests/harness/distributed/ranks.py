"""The ranks of tests: a process imports megatron once and starts the ranks of every layout, which call functions."""

import inspect
import os
import pickle
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection, Listener, wait
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from harness import child_process
from harness.distributed import on_ranks
from harness.distributed.layout import Layout
from harness.distributed.ways_to_join import VARIABLE, Way

DEADLINE_S = 400.0
_MOST_LAYOUTS = 4
"""Layouts whose ranks live at the same time, because each rank takes memory."""
_GRACE_S = 3.0
"""How long other ranks have to raise as well, after the first one did."""


class Start(NamedTuple):
    """What the process that starts ranks is told."""

    layout: Layout
    folder: str
    """Where the ranks meet, and `ranks.sock` awaits them."""
    file: str
    module: str
    """The file of the first call, whose imports the ranks share."""


class Call(NamedTuple):
    """A function that a rank is told to call with the layout's cluster and these arguments."""

    file: str
    module: str
    name: str
    arguments: dict[str, Any]
    is_last: bool = False
    """Whether the rank ends after the call."""


class Answer(NamedTuple):
    """What a call returned, or how it ended."""

    value: Any = None
    raised: str | None = None
    skipped: str | None = None


class _Group(NamedTuple):
    connections: list[Connection]
    pids: list[int]

    def send(self, signal_number: signal.Signals) -> None:
        for pid in self.pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal_number)

    def stop(self) -> None:
        self.send(signal.SIGKILL)
        for connection in self.connections:
            connection.close()


def refusal(way: Way, layout: Layout, runs_on_a_device: bool) -> str | None:
    """Return why a test does not run this way, or None if it does."""
    if way is Way.CPU:
        return None
    if not runs_on_a_device:
        return "this test runs on the CPU only: it does not say runs_on_a_device=True"
    if way is Way.GLOO and layout.cluster.num_ep_groups > 1:
        return f"{layout} needs NCCL: gloo does not reduce or gather shards that are CUDA tensors"
    return None


class Ranks:
    """The ranks of the layouts that were used last. The system stops ranks without a call, whose threads would go on.

    Args:
        way: how the ranks join, and so on which device.
        variables: what else their environment needs.
    """

    def __init__(self, way: Way = Way.CPU, **variables: str) -> None:
        self.way, self._variables = way, variables
        self._folder = tempfile.TemporaryDirectory()
        self._log = Path(self._folder.name, "log")
        self._process: subprocess.Popen[bytes] | None = None
        self._groups: dict[Layout, _Group] = {}

    def run(
        self,
        layout: Layout,
        function: Callable[..., Any],
        *,
        alone: bool = False,
        may_die: bool = False,
        runs_on_a_device: bool = False,
        **arguments: Any,
    ) -> list[Any]:
        """Call a function on every rank, and return its value by rank; the test fails with the first error of a rank.

        Args:
            layout: the arrangement of the ranks.
            function: what every rank calls, as `function(cluster, **arguments)`.
            alone: whether all ranks are new and none is used again, because the function changes its process.
            may_die: whether ranks may end instead; their value is None. They are alone.
            runs_on_a_device: whether `--device cuda` runs this too. Most use stand-ins for Transformer Engine, for
                memory of the host or for DeepEP, start services, or kill ranks; their tests are skipped there.
            arguments: values that can be pickled.
        """
        reason = refusal(self.way, layout, runs_on_a_device)
        if reason is not None:
            pytest.skip(reason)
        file, module = inspect.getfile(function), function.__module__
        call = Call(file, module, function.__name__, arguments, is_last=alone or may_die)
        return self.call(layout, call, may_die=may_die)

    def call(self, layout: Layout, call: Call, *, may_die: bool = False) -> list[Any]:
        """Call a function by its name, as `run` does."""
        group = None if call.is_last else self._groups.pop(layout, None)
        if group is None:
            group = self._started(Start(layout, "", call.file, call.module))
        group.send(signal.SIGCONT)
        for connection in group.connections:
            connection.send(call)
        answers = self._answers(group)
        if call.is_last or not all(answers) or any(answer and answer.raised for answer in answers):
            group.stop()
        else:
            group.send(signal.SIGSTOP)
            self._groups[layout] = group
        while len(self._groups) > _MOST_LAYOUTS:
            self._groups.pop(next(iter(self._groups))).stop()
        self._check(call.name, answers, may_die)
        return [answer and answer.value for answer in answers]

    @property
    def log(self) -> str:
        """What the ranks have written so far."""
        return self._log.read_text() if self._log.exists() else ""

    def stop(self) -> None:
        """End all processes."""
        while self._groups:
            self._groups.popitem()[1].stop()
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._process = None

    def _check(self, name: str, answers: list[Answer | None], may_die: bool) -> None:
        raised = [answer.raised for answer in answers if answer is not None and answer.raised]
        # If one rank raises and leaves, the others see that its connections end.
        raised.sort(key=lambda text: "Connection closed by peer" in text)
        if raised:
            pytest.fail(f"{name} raised on {len(raised)} ranks, first:\n{raised[0]}", pytrace=False)
        missing = [rank for rank, answer in enumerate(answers) if answer is None]
        if missing and not may_die:
            pytest.fail(f"{name} did not end on ranks {missing}; end of the log:\n{self.log[-3000:]}", pytrace=False)
        skipped = [answer.skipped for answer in answers if answer is not None and answer.skipped]
        if skipped:
            pytest.skip(skipped[0])

    @staticmethod
    def _answers(group: _Group) -> list[Answer | None]:
        answers: dict[Connection, Answer | None] = {}
        deadline = time.monotonic() + DEADLINE_S
        while pending := [each for each in group.connections if each not in answers]:
            ready = wait(pending, timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                break
            for connection in ready:
                try:
                    answers[connection] = connection.recv()
                except (EOFError, ConnectionResetError):
                    answers[connection] = None
                answer = answers[connection]
                if answer is not None and answer.raised:
                    deadline = min(deadline, time.monotonic() + _GRACE_S)
        return [answers.get(each) for each in group.connections]

    def _started(self, start: Start) -> _Group:
        process = self._process = self._process or self._forker()
        assert process.stdin is not None
        folder = tempfile.mkdtemp(dir=self._folder.name)
        with Listener(f"{folder}/ranks.sock", backlog=start.layout.num_ranks) as listener:
            listener._listener._socket.settimeout(DEADLINE_S)  # type: ignore[attr-defined]
            pickle.dump(start._replace(folder=folder), process.stdin)
            process.stdin.flush()
            try:
                joined = {}
                for _ in range(start.layout.num_ranks):
                    connection = listener.accept()
                    rank, pid = connection.recv()
                    joined[rank] = connection, pid
            except (OSError, EOFError):
                pytest.fail(f"the ranks of {start.layout} did not start; end of the log:\n{self.log[-3000:]}")
        return _Group(*map(list, zip(*(joined[rank] for rank in sorted(joined)), strict=True)))

    def _forker(self) -> subprocess.Popen[bytes]:
        # Compiling megatron's small fused functions takes longer than running them in these tests.
        variables = {"OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1", on_ranks.VARIABLE: "1", VARIABLE: self.way}
        with self._log.open("wb") as log:
            return subprocess.Popen(
                child_process.command("harness.distributed.rank"),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=child_process.environment(**variables, **self._variables),
                start_new_session=True,
            )
