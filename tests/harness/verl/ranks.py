"""`python -m harness.verl.ranks FOLDER PLANNER`: ranks run verl's engine, plain and with the plug-in, side by side.

Two ranks run the scenarios, then four ranks run the layouts.
"""

import os

from relibra.demo import megatron_on_cpu

os.environ["VERL_PLATFORM"] = "cpu"
megatron_on_cpu.install()

from harness.verl import stand_ins  # noqa: E402  (builds on megatron, shims first)

stand_ins.install()

import verl.trainer.ppo.v1.trainer_base  # noqa: E402  (rank 0 is the driver of some scenarios)
import verl.workers.engine  # noqa: E402, F401  (loaded in every worker with an engine)

from harness import framework_ranks  # noqa: E402
from harness.verl import layouts, packed, scenarios  # noqa: E402

if __name__ == "__main__":
    framework_ranks.run(scenarios.prepare, scenarios.SCENARIOS)
    framework_ranks.run(layouts.prepare, layouts.SCENARIOS | packed.SCENARIOS, num_ranks=4)
