"""Configurations of every MoE architecture of transformers 5.23, beside the models that transformers builds from them.

The table is written by `python tests/harness/transformers_models.py --table`; `tests/frameworks` builds the models.
"""

import json

from harness.transformers_models import TABLE, misread


def test_S9_every_moe_architecture_is_read_as_it_is_built_or_refused_by_name(tmp_path):
    rows = json.loads(TABLE.read_text())
    assert len({row["model_type"] for row in rows}) > 70
    assert [problem for row in rows if (problem := misread(row, tmp_path))] == []
