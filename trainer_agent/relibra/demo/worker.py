"""Child processes that answer one command at a time over a pipe. A fork server imports torch once for all of them."""

import importlib
import multiprocessing
import os
import warnings
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

from relibra.errors import RelibraError


class Worker:
    """One child process that runs `main(pipe, *arguments)` of a module."""

    def __init__(self, name: str, module: str, *arguments: object) -> None:
        self.name = name
        # The fork server inherits these before it imports torch: this model trains on the CPU on GPU hosts too.
        os.environ |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        context = multiprocessing.get_context("forkserver")
        # Torch and megatron are safe to import before a fork. gRPC is not: its channels do not survive one.
        context.set_forkserver_preload(["relibra.demo.model"])
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(module, theirs, *arguments), name=name, daemon=True)
        self._process.start()
        theirs.close()

    def ask(self, *command: object) -> None:
        """Send a command; collect the answer with `answers`."""
        self._pipe.send(command)

    def close(self) -> None:
        """Close the pipe, which ends the process; kill the process if it does not end."""
        self._pipe.close()
        self._process.join(timeout=10.0)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    @staticmethod
    def answers(workers: Sequence["Worker"]) -> list[Any]:
        """Wait for one answer from each worker, however long it takes; return the answers in the order of the workers.

        Raises:
            RelibraError: a worker died; its own output says why.
        """
        answers: dict[int, Any] = {}
        while missing := [index for index in range(len(workers)) if index not in answers]:
            pipes: dict[Connection, int] = {workers[index]._pipe: index for index in missing}
            deaths = {workers[index]._process.sentinel: index for index in missing}
            for ready in wait([*pipes, *deaths]):
                if isinstance(ready, Connection):
                    try:
                        answers[pipes[ready]] = ready.recv()
                    except EOFError:
                        raise workers[pipes[ready]]._error_of_death() from None
                elif isinstance(ready, int) and not workers[deaths[ready]]._pipe.poll():
                    raise workers[deaths[ready]]._error_of_death()
        return [answers[index] for index in range(len(workers))]

    def _error_of_death(self) -> RelibraError:
        self._process.join(timeout=5.0)
        return RelibraError(f"{self.name} died with exit status {self._process.exitcode}; see its output above")


def _serve(module: str, pipe: Connection, *arguments: object) -> None:
    """Import the module by its name, so that the parent process never imports torch."""
    # megatron and torch warn about each other's deprecations in every process; users of the demo cannot act on that.
    warnings.filterwarnings("ignore", module=r"megatron|torch")
    importlib.import_module(module).main(pipe, *arguments)
