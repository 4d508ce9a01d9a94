"""The example of docs/integration/megatron.md runs as it stands, on one rank and without a planner."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.distributed

PAGE = Path(__file__).parents[2] / "docs" / "integration" / "megatron.md"
SETTING = """
import warnings; warnings.simplefilter("ignore")
import sys; sys.path.insert(0, {folder!r})
from relibra import megatron_on_cpu
megatron_on_cpu.install()
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
dist.init_process_group("gloo", init_method="file://{rendezvous}", rank=0, world_size=1)
parallel_state.initialize_model_parallel(expert_model_parallel_size=1, expert_tensor_parallel_size=1)
model_parallel_cuda_manual_seed(1)
from networks import Trained, TOKENS, SEQUENCE, BATCH, HIDDEN
from relibra.planning import Cluster
import torch
trained = Trained(Cluster(num_nodes=1, gpus_per_node=1, redundant_slots=2), num_moe_experts=8)
model_chunks, optimizer = [trained.ddp], trained.optimizer
calls = []
def forward_step(batches, model):
    calls.append(next(batches))
    return model(torch.randn(SEQUENCE, BATCH, HIDDEN)).float().square().mean()
def train_one_step(forward_step):
    trained.ddp.zero_grad_buffer()
    batches = iter(range(2))
    for _ in range(2):
        forward_step(batches, trained.ddp).backward()
    trained.ddp.finish_grad_sync()
    optimizer.step()
"""


def test_S5_the_example_runs_as_it_stands(tmp_path):
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    setting = SETTING.format(folder=str(Path(__file__).parent), rendezvous=tmp_path / "rendezvous")
    script = tmp_path / "example.py"
    script.write_text(
        f"{setting}\n{example}\nassert calls == [0, 1] * 2\n"
        "print('done', 'preprocess' in vars(trained.network.moe[0]))\n"
    )
    result = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=90, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["done", "False"]
    assert "keeps its placement, without replicas" in result.stderr
