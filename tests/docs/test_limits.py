"""The table of limits in docs/limits.md has every counted limit, and what it names exists."""

import re

import pytest

from harness.doc_blocks import REPOSITORY
from relibra.planner.metrics import LIMITS
from relibra.planner.settings import PlannerSettings
from relibra.status.refusals import Bound
from relibra.status.settings import StatusSettings

TEXT = (REPOSITORY / "docs" / "limits.md").read_text(encoding="utf-8")
SECTION = TEXT.partition("\n## What stops a client")[2]
ROWS = re.findall(r"^\| ([a-z][^|]+) \| ([^|]+) \| ([^|]+) \| ([^|]*?) ?\| `([^|]+)` \|$", SECTION, re.M)
ALERTS = (REPOSITORY / "deploy" / "prometheus" / "alerts.yaml").read_text(encoding="utf-8")


def test_the_table_has_every_limit_that_is_counted() -> None:
    counted = " ".join(label for _, _, label, _, _ in ROWS)
    assert set(re.findall(r'limit="(\w+)"', counted)) == set(LIMITS) - {"other"}
    assert set(re.findall(r'setting="(\w+)"', counted)) == {str(each) for each in Bound}


@pytest.mark.parametrize(("client", "limit", "counted", "alert", "test"), ROWS)
def test_a_row_names_what_exists(client: str, limit: str, counted: str, alert: str, test: str) -> None:
    if not limit.startswith("fixed"):
        assert limit.strip("`") in PlannerSettings.model_fields | StatusSettings.model_fields, client
    if alert:
        label, _, value = counted.strip("`").partition("=")
        rule = ALERTS.partition(f"- alert: {alert}\n")[2].partition("- alert:")[0]
        assert f"by ({label})" in rule or counted.strip("`") in rule
        assert label != "error" or value.strip('"') in rule
    else:
        assert "not refused" in counted
    assert (REPOSITORY / "tests" / test).is_file()
