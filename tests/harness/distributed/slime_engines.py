"""Stand-ins for the rollout engines that slime's updates of weights talk to, and for what it packs weights with.

The tests need only this much of SGLang, safetensors and Ray: a bucket of tensors is packed, serialized and handed to an
engine in the same process, or written to a file.
"""

import base64
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor


class FlattenedTensorBucket:
    """Packs named tensors into one tensor and their metadata, as SGLang's class of this name."""

    supports_multi_dtypes = True

    def __init__(self, named_tensors: Sequence[tuple[str, Tensor]]) -> None:
        self._named = [(name, each.detach().contiguous()) for name, each in named_tensors]

    def get_flattened_tensor(self) -> Tensor:
        return torch.cat([each.view(-1).view(torch.uint8) for _, each in self._named])

    def get_metadata(self) -> list[tuple[str, torch.dtype, tuple[int, ...]]]:
        return [(name, each.dtype, tuple(each.shape)) for name, each in self._named]


def unpacked(flat: Tensor, metadata: Sequence[tuple[str, torch.dtype, tuple[int, ...]]]) -> dict[str, Tensor]:
    """Return the tensors of a bucket by name."""
    named, start = {}, 0
    for name, dtype, shape in metadata:
        stop = start + dtype.itemsize * int(torch.Size(shape).numel())
        named[name] = flat[start:stop].clone().view(dtype).view(shape)
        start = stop
    return named


class MultiprocessingSerializer:
    """Serializes a bucket into text, as SGLang's class of this name."""

    @staticmethod
    def serialize(data: Any, output_str: bool) -> str:
        assert output_str
        written = io.BytesIO()
        torch.save(data, written)
        return base64.b64encode(written.getvalue()).decode()

    @staticmethod
    def deserialize(text: str) -> Any:
        return torch.load(io.BytesIO(base64.b64decode(text)), weights_only=False)


class Engine:
    """A rollout engine: keeps the tensors that the ranks of its GPUs send, by name."""

    def __init__(self) -> None:
        self.received: dict[str, Tensor] = {}
        self.versions: list[str] = []
        for called in (self.pause_generation, self.flush_cache, self.continue_generation):
            setattr(self, called.__name__, _remote(called))
        self.update_weights_from_tensor = _remote(self._update)

    def pause_generation(self) -> None: ...

    def flush_cache(self) -> None: ...

    def continue_generation(self) -> None: ...

    def _update(self, *, serialized_named_tensors: Sequence[str], load_format: str, weight_version: str) -> None:
        assert load_format == "flattened_bucket"
        self.versions.append(weight_version)
        for text in serialized_named_tensors:
            data = MultiprocessingSerializer.deserialize(text)
            self.received |= unpacked(data["flattened_tensor"], data["metadata"])


def _remote(method: Callable[..., Any]) -> SimpleNamespace:
    return SimpleNamespace(remote=method)


def save_file(tensors: dict[str, Tensor], file: Path, metadata: dict[str, str]) -> None:
    """Write named tensors, in place of the function of safetensors."""
    torch.save(tensors, file)


def loaded(folder: Path) -> dict[str, Tensor]:
    """Return what an engine would load from the checkpoint in `folder`."""
    named: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb") as opened:  # given a path of this name, torch asks safetensors
            named |= torch.load(opened)
    return named
