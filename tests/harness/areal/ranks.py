"""`python -m harness.areal.ranks FOLDER PLANNER`: two ranks run AReaL's engine, plain and with the plug-in.

Rank r writes what it measured to `FOLDER/rank<r>.json`.
"""

from relibra.demo import megatron_on_cpu

megatron_on_cpu.install()

from harness.areal import stand_ins  # noqa: E402  (builds on megatron, shims first)

stand_ins.install()

from harness import framework_ranks  # noqa: E402
from harness.areal import scenarios  # noqa: E402

if __name__ == "__main__":
    framework_ranks.run(scenarios.prepare, scenarios.SCENARIOS)
