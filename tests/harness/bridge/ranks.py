"""`python -m harness.bridge.ranks FOLDER PLANNER`: four ranks train a GPT with LoRA of Megatron-Bridge."""

from harness.distributed import device

device.install()

from harness import bridge_on_cpu  # noqa: E402  (builds on megatron, shims first)

bridge_on_cpu.install()

from harness import framework_ranks  # noqa: E402
from harness.bridge import scenarios  # noqa: E402

if __name__ == "__main__":
    framework_ranks.run(lambda _: None, scenarios.SCENARIOS, num_ranks=4)
