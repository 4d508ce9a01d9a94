"""A tiny random Qwen3-MoE, which the frameworks train on the CPU."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

NUM_LAYERS, NUM_EXPERTS, TOP_K = 2, 8, 2
OFF_ON_CPU = (
    "moe_grouped_gemm",
    "moe_permute_fusion",
    "bias_activation_fusion",
    "masked_softmax_fusion",
    "persist_layer_norm",
    "apply_rope_fusion",
    "gradient_accumulation_fusion",
    "cross_entropy_loss_fusion",
    "bias_dropout_fusion",
)
"""Settings of megatron's transformer that need a GPU."""


def random_routes(rng: np.random.Generator, num_rows: int, num_layers: int = NUM_LAYERS) -> NDArray[np.int64]:
    """Return rows of routing `[T, L, K]`, in which the first experts have most tokens."""
    chance_E = np.array([8, 4, 2, 1, 1, 1, 1, 1.0]) / 19
    rows = [rng.choice(NUM_EXPERTS, TOP_K, replace=False, p=chance_E) for _ in range(num_rows * num_layers)]
    return np.reshape(rows, (num_rows, num_layers, TOP_K))


def save(folder: Path, num_layers: int = NUM_LAYERS, **sizes: Any) -> None:
    """Write the model as Hugging Face does, with other `sizes` than its own."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    torch.manual_seed(0)
    own = {
        "vocab_size": 128,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": num_layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "moe_intermediate_size": 16,
        "num_experts": NUM_EXPERTS,
        "num_experts_per_tok": TOP_K,
        "decoder_sparse_step": 1,
        "norm_topk_prob": True,
        "tie_word_embeddings": False,
        "max_position_embeddings": 128,
    }
    config = Qwen3MoeConfig(**(own | sizes))
    Qwen3MoeForCausalLM(config).save_pretrained(folder)


def written(folder: Path) -> dict[str, torch.Tensor]:
    """Return the weights of a model that Hugging Face's files in a folder hold."""
    from safetensors.torch import load_file

    return {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}


def save_with_tokenizer(folder: Path, num_layers: int = NUM_LAYERS, **sizes: Any) -> None:
    """Write the model, and a tokenizer of one character per token, with what agent loops ask of Qwen's."""
    from tokenizers import Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    save(folder, num_layers, **sizes)
    characters = [chr(33 + index) for index in range(94)] + [chr(161 + index) for index in range(30)]
    words = {word: index for index, word in enumerate(["<pad>", "<eos>", "\n", "<|im_end|>", *characters])}
    tokenizer = Tokenizer(WordLevel(words, unk_token="<pad>"))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Split("", "isolated"), decoders.Fuse()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<eos>",
        bos_token="<eos>",
        additional_special_tokens=["<|im_end|>"],
    )
    fast.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    fast.save_pretrained(folder)
