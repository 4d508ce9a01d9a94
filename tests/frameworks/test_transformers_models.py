"""Every MoE architecture of the installed transformers, built, beside what relibra reads in its `config.json`."""

import json
import subprocess

from harness import child_process
from harness.transformers_models import misread

DEADLINE_S = 300.0


def test_S9_every_moe_architecture_is_read_as_it_is_built_or_refused_by_name(frameworks_python, tmp_path):
    built = subprocess.run(
        [frameworks_python, "-m", "harness.transformers_models"],
        env=child_process.environment(),
        stdout=subprocess.PIPE,
        timeout=DEADLINE_S,
        check=True,
    )
    rows = [json.loads(line) for line in built.stdout.splitlines()]
    assert len({row["model_type"] for row in rows}) > 30
    assert [problem for row in rows if (problem := misread(row, tmp_path))] == []
