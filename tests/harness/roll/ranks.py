"""`python -m harness.roll.ranks FOLDER PLANNER`: two ranks run ROLL's workers, plain and with the plug-in."""

from relibra.demo import megatron_on_cpu

megatron_on_cpu.install()

from harness.roll import stand_ins  # noqa: E402  (builds on megatron, shims first)

stand_ins.install()

from harness import framework_ranks  # noqa: E402
from harness.roll import scenarios  # noqa: E402

if __name__ == "__main__":
    framework_ranks.run(scenarios.prepare, scenarios.SCENARIOS)
