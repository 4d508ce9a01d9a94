"""`python -m harness.whole_job.prepare FOLDER`: write what all launches of a job share.

A tiny Qwen3-MoE of the sizes that vLLM's CPU kernels take, prompts, and the agent loop of verl.
"""

import sys
from pathlib import Path

import pandas as pd

from harness import tiny_qwen3_moe
from harness.whole_job import verl_loop

NUM_PROMPTS = 64
NUM_LAYERS = 4
SIZES = {
    "hidden_size": 128,
    "intermediate_size": 128,
    "head_dim": 32,
    "moe_intermediate_size": 64,
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "initializer_range": 0.15,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 1,
    "pad_token_id": 0,
}


def main(folder: Path) -> None:
    """Write the files."""
    tiny_qwen3_moe.save_with_tokenizer(folder / "model", NUM_LAYERS, **SIZES)
    rows = [
        {
            "data_source": "digits",
            "prompt": [{"role": "user", "content": f"Say{chr(65 + index % 26) * (3 + index % 11)}{index}"}],
            "ability": "digits",
            "reward_model": {"style": "rule", "ground_truth": ""},
            "extra_info": {"index": index},
        }
        for index in range(NUM_PROMPTS)
    ]
    pd.DataFrame(rows).to_parquet(folder / "prompts.parquet")
    (folder / "agent_loop.yaml").write_text(verl_loop.CONFIGURATION)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
