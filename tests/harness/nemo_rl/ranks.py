"""`python -m harness.nemo_rl.ranks FOLDER PLANNER`: two ranks run NeMo-RL's worker, plain and with the plug-in."""

from relibra.demo import megatron_on_cpu

megatron_on_cpu.install()

from harness.nemo_rl import stand_ins  # noqa: E402  (builds on megatron, shims first)

stand_ins.install()

from harness import framework_ranks  # noqa: E402
from harness.nemo_rl import scenarios  # noqa: E402

stand_ins.move_optimizer()

if __name__ == "__main__":
    framework_ranks.run(scenarios.prepare, scenarios.SCENARIOS)
