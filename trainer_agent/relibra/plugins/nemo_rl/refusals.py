"""The settings of NeMo-RL that the plug-in refuses. Importing this needs nothing of NeMo-RL."""

from collections.abc import Mapping
from typing import Any

from relibra.errors import Unsupported


def check_settings(config: Any, *, slices_context_parallel_inputs: bool) -> None:
    """Check the settings of a worker that trains.

    Args:
        config: the section `policy` of the configuration.
        slices_context_parallel_inputs: the worker's attribute `model_slices_context_parallel_inputs`.

    Raises:
        Unsupported: the plug-in was not run with these settings.
    """
    is_packed = config["sequence_packing"]["enabled"]
    if config["megatron_cfg"]["context_parallel_size"] > 1 and (not is_packed or slices_context_parallel_inputs):
        raise Unsupported(
            "relibra was run with context parallelism only where policy.sequence_packing.enabled=true, and not for "
            "models that cut packed inputs themselves (model_slices_context_parallel_inputs); set "
            "policy.megatron_cfg.context_parallel_size=1"
        )


def check_generation(config: Mapping[str, Any]) -> None:
    """Check what generates, in a job whose experts move.

    Megatron's own engine reads weights of the policy in its modules or copies them by place, and keeps the tensors that
    it found under names before the first reorder. Nothing of that can be refused when it happens.

    Args:
        config: the section `policy` of the configuration.

    Raises:
        Unsupported: Megatron generates.
    """
    if (config.get("generation") or {}).get("backend") == "megatron":
        raise Unsupported(
            "expected another policy.generation.backend than megatron where experts move, because Megatron's own "
            "engine takes weights by place, past the methods in which relibra gives each expert its own name; set "
            "policy.relibra.reorder=never, or generate with vllm"
        )
