"""Messages of gloo between CUDA tensors: gloo itself would read the address of a device on the host.

Torch's gloo copies CUDA tensors to the host and back in collectives, but not in messages from one rank to another. This
module does it for batches of messages. It waits for the device at both ends, so it shows nothing about speed.
"""

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor

_plain = dist.batch_isend_irecv


def install() -> None:
    """Let batches of messages take CUDA tensors."""
    dist.batch_isend_irecv = through_host


def through_host(operations: Sequence[dist.P2POp]) -> list[Any]:
    """Send and receive as `torch.distributed.batch_isend_irecv`, with a copy of every tensor in host memory."""
    hosts = [each.tensor.detach().cpu().clone() for each in operations]
    staged = [
        dist.P2POp(each.op, host, group=each.group, tag=each.tag, group_peer=each.group_peer)
        for each, host in zip(operations, hosts, strict=True)
    ]
    works = _plain(staged)
    return [
        _Arriving(work, host, each.tensor) if each.op is dist.irecv else work
        for each, host, work in zip(operations, hosts, works, strict=True)
    ]


class _Arriving:
    """A message that fills a tensor from host memory when somebody waits for it."""

    def __init__(self, work: Any, host: Tensor, into: Tensor) -> None:
        self._work, self._host, self._into = work, host, into

    def wait(self, *args: Any) -> Any:
        result = self._work.wait(*args)
        self._into.copy_(self._host)
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)
