"""LoRA of Megatron-Bridge around layers without Transformer Engine: what Bridge reads off a layer that it adapts."""

from typing import Any

from megatron.bridge.models.conversion.param_mapping import AutoMapping
from megatron.bridge.peft import lora, utils
from megatron.bridge.peft.utils import AdapterAttributes

from harness.distributed.grouped import GroupedLinear

_attributes = lora.get_adapter_attributes_from_linear


def install() -> None:
    """Have Bridge adapt grouped products of the harness as those of Transformer Engine."""
    utils.HAVE_TE, lora.get_adapter_attributes_from_linear = False, attributes
    AutoMapping.register_module_type("GroupedLinear", "row")  # Bridge need not ask what the first product is


def attributes(linear: Any, **options: Any) -> AdapterAttributes:
    """Return what Bridge reads off a linear layer, of the grouped products here as of Transformer Engine's."""
    if not isinstance(linear, GroupedLinear):
        found: AdapterAttributes = _attributes(linear, **options)
        return found
    outputs, inputs = linear.weight0.shape
    return AdapterAttributes(
        input_is_parallel=not linear.is_column,
        in_features=inputs,
        out_features=outputs,
        disable_tensor_parallel_comm=False,
        disable_sequence_parallel_comm=True,
        base_linear_is_parallel=True,
    )
