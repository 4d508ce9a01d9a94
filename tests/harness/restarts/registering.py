"""`python -m harness.restarts.registering PLANNER FILE`: a worker that registers, writes its epoch, and waits."""

import json
import os
import signal
import sys
from pathlib import Path

from harness.services import CLUSTER, MODEL, PARAMS
from relibra.wire.client import PlannerClient

if __name__ == "__main__":
    address, file = sys.argv[1:]
    if os.environ["RANK"] == "0":
        with PlannerClient(address) as client:
            epoch = client.register_job("job", MODEL, CLUSTER, PARAMS, takeover_timeout_s=0)
        told = {"epoch": epoch, "restart": os.environ["TORCHELASTIC_RESTART_COUNT"]}
        with Path(file).open("a") as lines:
            lines.write(json.dumps(told) + "\n")
    signal.pause()
