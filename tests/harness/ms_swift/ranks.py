"""`python -m harness.ms_swift.ranks FOLDER PLANNER`: two ranks run ms-swift's trainer, plain and with the plug-in."""

from relibra.demo import megatron_on_cpu

megatron_on_cpu.install()

from harness.ms_swift import stand_ins  # noqa: E402  (builds on megatron, shims first)

stand_ins.install()

from harness import framework_ranks  # noqa: E402
from harness.ms_swift import scenarios  # noqa: E402

if __name__ == "__main__":
    framework_ranks.run(scenarios.prepare, scenarios.SCENARIOS)
