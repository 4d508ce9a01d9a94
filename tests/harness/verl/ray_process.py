"""Stand-ins for every process of a job of verl under Ray; verl itself imports them by `VERL_USE_EXTERNAL_MODULES`."""

import os

from relibra.demo import megatron_on_cpu, without_triton

VISIBLE_DEVICES = os.environ.get("CUDA_VISIBLE_DEVICES")
"""What Ray has set for an actor with a GPU. The shims hide devices."""
IS_WORKER = "WG_BACKEND" in os.environ  # verl's worker group sets it

if IS_WORKER:
    megatron_on_cpu.install()
else:
    without_triton.install()  # what workers send to the driver may bring megatron-core along

from harness.verl import stand_ins  # noqa: E402  (builds on megatron, shims first)

if IS_WORKER:
    stand_ins.install_in_worker()
else:
    stand_ins.install_platform()
