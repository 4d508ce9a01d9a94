"""What `relibra record` is told of the model that was recorded."""

from pathlib import Path

from relibra.errors import InvalidInput
from relibra.routing import ModelLayers, read_model_config


def model_of_options(
    config: Path | None, layers: int | None, experts: int | None, top_k: int | None, dense_layers: str
) -> ModelLayers:
    """Return the layers in the `config.json`, or of the numbers that were given instead.

    Raises:
        InvalidInput: neither is given, or a value is wrong; the message names the option.
    """
    if config is not None:
        return read_model_config(config)
    if layers is None or experts is None or top_k is None:
        raise InvalidInput.of(
            "--model-config", expected="the model's config.json, or --layers, --experts and --top-k", got="neither"
        )
    if not 1 <= layers <= 4096:
        raise InvalidInput.of("--layers", expected="1 to 4096", got=layers)
    dense = _layer_numbers(dense_layers, layers)
    return ModelLayers(num_experts=experts, top_k=top_k, is_moe=tuple(layer not in dense for layer in range(layers)))


def _layer_numbers(text: str, num_layers: int) -> set[int]:
    numbers: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        try:
            span = range(int(first), int(last or first) + 1)
        except ValueError:
            span = range(0)
        if not span or span[0] < 0 or span[-1] >= num_layers:
            raise InvalidInput.of("--dense-layers", expected=f"layers 0 to {num_layers - 1}, as 0,1,2 or 0-2", got=part)
        numbers.update(span)
    return numbers
