"""Run unmodified megatron-core, 0.16 to 0.20, on CPU and gloo: its MoE layers, DDP, optimizers and GPTModel.

megatron-core is written for CUDA, yet little of it *needs* CUDA: mostly device names, streams and the CUDA random
generator break. `install()` replaces them by their CPU counterparts. No shim changes a number: the same operators run
on the same values, so a result on the CPU about the mathematics of a training step also holds on GPUs.

The model must still be configured for the CPU: with `SETTINGS`, and with layer specs of the `local` builders, which do
without Transformer Engine.
"""

import contextlib
import functools
import importlib
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import torch

from relibra.demo import without_triton
from relibra.errors import RelibraError

_FACTORIES = ("tensor", "as_tensor", "zeros", "ones", "empty", "full", "arange", "zeros_like", "empty_like")

_IMPORTED_FIRST = (
    "torch._dynamo",  # this module and the next one inspect the factories, and must see them unwrapped
    "torch.distributed.tensor",
    "megatron.core",
    "megatron.core.models.gpt.gpt_layer_specs",
    "megatron.core.optimizer",
    "megatron.core.pipeline_parallel",
)

SETTINGS: Mapping[str, Any] = {
    "use_cpu_initialization": True,
    "moe_grouped_gemm": False,
    "moe_permute_fusion": False,
    "bias_activation_fusion": False,
    "bias_dropout_fusion": False,
    "masked_softmax_fusion": False,
    "gradient_accumulation_fusion": False,
    "persist_layer_norm": False,
}
"""What a `TransformerConfig` must say."""

_installed = False


def install() -> None:
    """Hide CUDA devices from this process and its children, and install the shims; a second call does nothing.

    Call this function before anything uses CUDA and before any megatron module is *built*.

    Raises:
        RelibraError: this process has used CUDA already.
    """
    global _installed
    if _installed:
        return
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if torch.cuda.is_available():
        raise RelibraError(
            "expected a process that has not used CUDA yet, but torch still sees CUDA devices after hiding them; "
            "start the process with CUDA_VISIBLE_DEVICES= (empty)"
        )
    _installed = True
    without_triton.install()
    with warnings.catch_warnings():
        # Importing megatron-core without Transformer Engine and Apex warns five times that it falls back to torch.
        warnings.simplefilter("ignore")
        for module in _IMPORTED_FIRST:
            importlib.import_module(module)
    _devices()
    _streams()
    _random_generator()
    _tensor_types()
    _dispatcher()
    stand_in_for_packages()


def stand_in_for_packages() -> None:
    """Stand in for what megatron-core takes from Transformer Engine and Apex, on any device; hide no device.

    Call this function after torch and before any megatron module is *built*. Packages that are installed stay in use.
    """
    _missing_transformer_engine()
    _missing_apex()
    _torch_adam()


def _devices() -> None:
    """Send CUDA tensors to the CPU.

    What breaks: `device=torch.cuda.current_device()` (router, mappings, gradient buffers) and literals
    `device="cuda"` (schedules, optimizer, gradient clipping) raise `Torch not compiled with CUDA enabled`.
    Why this is harmless: only the device of the tensor changes.
    """
    cpu = torch.device("cpu")
    torch.cuda.current_device = lambda: cpu  # type: ignore[assignment,return-value]
    torch.Tensor.cuda = lambda self, *_, **__: self  # type: ignore[method-assign]
    for name in _FACTORIES:
        setattr(torch, name, _on_cpu(getattr(torch, name)))


def _on_cpu(factory: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(factory)
    def create(*args: Any, **kwargs: Any) -> torch.Tensor:
        if str(kwargs.get("device")).startswith("cuda"):
            kwargs["device"] = torch.device("cpu")
        return factory(*args, **kwargs)

    return create


class _Event:
    """An event that has already happened."""

    def __init__(self, *_: object, **__: object) -> None: ...
    def record(self, *_: object) -> None: ...
    def wait(self, *_: object) -> None: ...
    def synchronize(self) -> None: ...
    def query(self) -> bool:
        return True


class _Stream:
    """The only stream: program order."""

    def __init__(self, *_: object, **__: object) -> None: ...
    def wait_stream(self, *_: object) -> None: ...
    def wait_event(self, *_: object) -> None: ...
    def synchronize(self) -> None: ...
    def query(self) -> bool:
        return True

    def record_event(self, event: _Event | None = None) -> _Event:
        return event or _Event()


@contextlib.contextmanager
def _no_stream(*_: object) -> Iterator[None]:
    yield


def _streams() -> None:
    """Replace streams, events and profiler ranges by objects that do nothing.

    What breaks: creating or requesting a stream raises without CUDA (alltoall dispatcher, DDP, schedules).
    Why this is harmless: CPU operators run in program order, which is stricter than any stream order.
    """
    only = _Stream()
    replacements: dict[str, object] = {
        "Stream": _Stream,
        "Event": _Event,
        "current_stream": lambda *_, **__: only,
        "default_stream": lambda *_, **__: only,
        "set_stream": lambda *_, **__: None,
        "stream": _no_stream,
        "synchronize": lambda *_, **__: None,
        "empty_cache": lambda: None,
    }
    for name, replacement in replacements.items():
        setattr(torch.cuda, name, replacement)
    for name in ("range_push", "range_pop", "mark"):
        setattr(torch.cuda.nvtx, name, lambda *_, **__: None)


def _random_generator() -> None:
    """Replace the CUDA random generator by the CPU one.

    What breaks: `model_parallel_cuda_manual_seed`, the tracker's `fork` around expert initialisation, and activation
    checkpointing read and write the CUDA generator's state.
    Why this is harmless: operators on a CPU draw from the CPU generator, so saving, forking and restoring that
    generator gives the reproducibility that megatron intends.
    """
    import megatron.core.tensor_parallel.random as megatron_random

    def seed_generator(seed: int) -> None:
        torch.default_generator.manual_seed(seed)

    torch.cuda.get_rng_state = lambda *_, **__: torch.get_rng_state()
    torch.cuda.set_rng_state = lambda state, *_, **__: torch.set_rng_state(state)
    torch.cuda.manual_seed = seed_generator
    megatron_random._get_cuda_rng_state = lambda *_, **__: torch.get_rng_state()
    megatron_random._set_cuda_rng_state = lambda state, *_, **__: torch.set_rng_state(state)


def _tensor_types() -> None:
    """Give CPU tensors the type strings that megatron compares.

    What breaks: optimizers and gradient clipping sort parameters by `param.type() == "torch.cuda.FloatTensor"` and
    raise on anything else.
    Why this is harmless: megatron only compares the string, and `type(dtype)` conversions work as before.
    """
    plain = torch.Tensor.type

    def spelled(self: torch.Tensor, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        if dtype is not None:
            return plain(self, dtype, *args, **kwargs)
        name = str(plain(self))
        return name if name.startswith("torch.cuda.") else name.replace("torch.", "torch.cuda.", 1)

    torch.Tensor.type = spelled  # type: ignore[method-assign,assignment]


def _dispatcher() -> None:
    """Give the alltoall dispatcher its split sizes as numpy arrays.

    What breaks: `maybe_move_tensor_to_cpu(as_numpy=True)` converts CUDA tensors only, so the collective gets tensors
    although it needs numbers.
    Why this is harmless: the arrays hold the same integers.
    """
    from megatron.core.transformer.moe.token_dispatcher import MoEAlltoAllTokenDispatcher

    def splits_to_numpy(self: Any, point: str, tokens_per_expert: torch.Tensor | None = None) -> torch.Tensor | None:
        if not self.drop_and_pad and point == self.cuda_dtoh_point:
            for name in ("input_splits", "output_splits", "output_splits_tp"):
                splits = getattr(self, name)
                if torch.is_tensor(splits):
                    setattr(self, name, splits.numpy())
        return tokens_per_expert

    MoEAlltoAllTokenDispatcher._maybe_dtoh_and_synchronize = splits_to_numpy


def _missing_transformer_engine() -> None:
    """Bind three names that megatron-core reads although they exist only with Transformer Engine.

    What breaks: the fp32 router reads `te_general_gemm`. `CheckpointWithoutOutput(fp8=False)` treats False as fp8
    because it is not None, and then asks for Transformer Engine's fp8 state. Both raise `NameError` in 0.16. Newer
    versions compare linear layers for multi-token prediction with a class for inference, which is None: `TypeError`.
    Why this is harmless: None and False are the values that these places intend.
    """
    import megatron.core.tensor_parallel.random as megatron_random
    import megatron.core.transformer.moe.moe_utils as moe_utils
    import megatron.core.transformer.multi_token_prediction as multi_token_prediction

    if not hasattr(moe_utils, "te_general_gemm"):
        moe_utils.te_general_gemm = None
    checkpoint = megatron_random.CheckpointWithoutOutput
    plain = checkpoint.__init__

    def initialise(self: Any, fp8: Any = False, *args: Any, **kwargs: Any) -> None:
        plain(self, fp8, *args, **kwargs)
        self.fp8 = bool(fp8)

    checkpoint.__init__ = initialise
    if hasattr(multi_token_prediction, "is_inference_column_parallel_linear"):
        multi_token_prediction.is_inference_column_parallel_linear = lambda _: False


def _missing_apex() -> None:
    """Replace the kernel that adds the gradient of a weight to its fp32 `main_grad`.

    What breaks: linear layers with `gradient_accumulation_fusion` need Apex's CUDA extension and raise `RuntimeError`.
    Why this is harmless: Apex's kernel also computes a product in fp32 and adds it.
    """
    import megatron.core.tensor_parallel.layers as layers

    if layers._grad_accum_fusion_available:
        return

    def add_product(inputs: torch.Tensor, gradient: torch.Tensor, main_grad: torch.Tensor) -> None:
        main_grad.add_(gradient.float().t() @ inputs.float())

    layers.fused_weight_gradient_mlp_cuda = SimpleNamespace(wgrad_gemm_accum_fp32=add_product)
    layers._grad_accum_fusion_available = True


def _torch_adam() -> None:
    """Let the distributed optimizer load a checkpoint into torch's Adam.

    What breaks: torch's Adam counts steps per parameter; the fused Adam of Transformer Engine and Apex counts them per
    group. The checkpoint has the count per group, so copying it state by state raises `KeyError: 'step'`. Besides,
    megatron gives all parameters one tensor for their counts, which then rises once per parameter in every step.
    Why this is harmless: the group's count has been set before, and each parameter gets a copy of it.
    """
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

    plain = DistributedOptimizer._set_main_param_and_optimizer_states

    def set_states(self: Any, model_param: torch.Tensor, tensors: dict[str, torch.Tensor]) -> None:
        own = self._get_main_param_and_optimizer_states(model_param)
        if "step" not in own:
            plain(self, model_param, tensors)
            return
        plain(self, model_param, {"step": own["step"], **tensors})
        if own["param"] in self.optimizer.state:  # not where the optimizer keeps counts of copies on the host
            self.optimizer.state[own["param"]]["step"] = own["step"].clone()

    DistributedOptimizer._set_main_param_and_optimizer_states = set_states
