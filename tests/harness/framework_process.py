"""`python -m harness.framework_process FOLDER PLANNER NAME`: ranks run a framework, plain and with the plug-in."""

import sys
from importlib import import_module

from relibra.demo import megatron_on_cpu

if __name__ == "__main__":
    megatron_on_cpu.install()
    import_module(f"harness.{sys.argv[3]}.stand_ins").install()  # builds on megatron, shims first
    from harness import framework_ranks

    scenarios = import_module(f"harness.{sys.argv[3]}.scenarios")
    framework_ranks.run(scenarios.prepare, scenarios.SCENARIOS)
