"""The settings of published recipes are judged as the agent judges them. They are not in the repository."""

import csv
import os
from pathlib import Path

import pytest

from benchmarks import results
from benchmarks.recipes import judge_row, share

RECIPES = Path(os.environ.get("RELIBRA_RECIPES", Path(__file__).parents[4] / "shared" / "reference" / "recipes"))

pytestmark = pytest.mark.skipif(not (RECIPES / "recipes.csv").is_file(), reason="the published recipes are not here")


def rows() -> list[dict[str, str]]:
    with (RECIPES / "recipes.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_each_row_gets_a_verdict_with_its_reasons():
    found = [judge_row(row) for row in rows()]
    assert len(found) > 200
    for judgement in found:
        assert all(each.alternative and each.reason for each in judgement.refusals)


def test_what_a_row_sets_is_what_it_is_refused_for():
    for row in rows():
        refused = {each.setting for each in judge_row(row).refusals}
        for name in ("optimizer_cpu_offload", "use_precision_aware_optimizer", "moe_shared_expert_overlap"):
            assert row[name] == "True" or name not in refused, (row["path"], name)
        assert row["lora_on"] == "experts" or "share_expert_adapters" not in refused


def test_the_shares_in_the_documentation_are_those_of_the_table():
    said = {row["framework"]: row["taken"] for row in results.read("recipes")}
    found = {each["framework"]: each["taken"] for each in share(rows())}
    assert said == found, "settings have changed: run python -m benchmarks.recipes and python docs/settings.py"
