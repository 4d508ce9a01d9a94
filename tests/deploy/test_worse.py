"""Every way to be worse that the runbook lists has an alert that tells of it in time, and clears by itself."""

import re
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from harness.alerts import ALERTS, RUNBOOK, promtool
from relibra.planner.metrics import Lost
from relibra.planning import Cause
from relibra.status.balance import Obstacle

_SCRAPE_S = 15
_FAULTS: list[dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("worse.yaml").read_text())
_SECTION = RUNBOOK.partition("\n## What can be worse\n")[2].partition("\n## ")[0]
_ROWS = re.findall(r"^\| ([^|]+) \| (`[^|]+) \| \[(Relibra\w+)\]\(#(\w+)\) \|$", _SECTION, re.M)
_METRIC = r"`(\w+)`(?: (\w+) (`[^`]+`(?:, `[^`]+`)*))?"
"""A metric of a row, and perhaps a label with its values."""


def _faults() -> list[dict[str, Any]]:
    """Return the faults, one for each value of X."""
    spread = []
    for fault in _FAULTS:
        for value in fault.get("values", [""]):
            text = yaml.safe_dump(fault)
            spread.append(yaml.safe_load(re.sub(r"\bX\b|(?<=_)X(?=_)", value, text)))
    return spread


def _samples(series: str, values: list[Any], ill_min: int) -> str:
    """Write the samples of a series in the notation of promtool: well for ten minutes, ill, and well for 70 minutes."""
    is_counter = bool(re.match(r"\w+_(total|bucket|errors)\b", series))
    parts, start, now_s = [], 0.0, 0
    for value, minutes in zip([values[0], values[1], values[0]], (10, ill_min, 70), strict=True):
        num = minutes * 60 // _SCRAPE_S
        if value is None:
            parts.append(f"stale _x{num - 1}")
        elif value == "now":
            parts.append(f"{now_s}+{_SCRAPE_S}x{num - 1}")
        elif is_counter:
            parts.append(f"{start + value:g}+{value}x{num - 1}")
            start += value * num
        else:
            parts.append(f"{value}x{num - 1}")
        now_s += num * _SCRAPE_S
    return " ".join(parts)


def _case(fault: dict[str, Any]) -> dict[str, Any]:
    ill_min = fault.get("ill", 10)
    severity = next(rule["labels"]["severity"] for rule in ALERTS if rule["alert"] == fault["alert"])

    def firing(labels: dict[str, str]) -> dict[str, Any]:
        all_labels = {"alertname": fault["alert"], "alertstate": "firing", "severity": severity} | labels
        written = ", ".join(f'{name}="{value}"' for name, value in all_labels.items())
        return {"labels": f"ALERTS{{{written}}}", "value": 1}

    fires = [firing(labels) for labels in (fault["labels"], *fault.get("others", ()))]
    query = f'ALERTS{{alertname="{fault["alert"]}", alertstate="firing"}}'
    checks = {
        10 * 60 - _SCRAPE_S: [],
        (10 + fault.get("fires", 2)) * 60: fires,
        (10 + ill_min) * 60 - _SCRAPE_S: fires,
        (10 + ill_min + fault.get("gone", 2)) * 60: [],
    }
    return {
        "name": f"{fault['alert']} {fault['labels']}",
        "interval": f"{_SCRAPE_S}s",
        "input_series": [
            {"series": series, "values": _samples(series, values, ill_min)}
            for series, values in fault["series"].items()
        ],
        "promql_expr_test": [
            {"expr": query, "eval_time": f"{at_s}s", "exp_samples": samples} for at_s, samples in checks.items()
        ],
    }


def test_S9_every_fault_raises_its_alert_within_two_minutes_and_its_end_clears_it(tmp_path: Path) -> None:
    files = []
    for rule in ALERTS:
        name = rule["alert"]
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump({"groups": [{"name": "one", "rules": [rule]}]}))
        cases = {
            "rule_files": [f"{name}.yaml"],
            "evaluation_interval": f"{_SCRAPE_S}s",
            "tests": [_case(fault) for fault in _faults() if fault["alert"] == name],
        }
        files.append(tmp_path / f"{name}_test.yaml")
        files[-1].write_text(yaml.safe_dump(cases))
    promtool("test", "rules", *files)


def test_every_alert_that_is_slower_is_explained() -> None:
    slower = {fault["alert"] for fault in _FAULTS if fault.get("fires") or fault.get("gone")}
    assert slower <= set(re.findall(r"^- \*\*(Relibra\w+)\*\*", _SECTION, re.M))


@pytest.mark.parametrize(("way", "metrics", "alert", "anchor"), _ROWS)
def test_every_row_names_what_its_alert_looks_at_and_what_a_fault_drives(
    way: str, metrics: str, alert: str, anchor: str
) -> None:
    assert anchor == alert.lower(), way
    (rule,) = (rule for rule in ALERTS if rule["alert"] == alert)
    series = [series for fault in _faults() if fault["alert"] == alert for series in fault["series"]]
    for name, label, values in re.findall(_METRIC, metrics):
        assert re.search(rf"\b{name}\b", rule["expr"]), way
        of_name = [each for each in series if each.startswith(f"{name}{{")]
        for value in re.findall(r"`([^`]+)`", values) or [""]:
            assert any(f'{label}="{value}"' in each for each in of_name) or (of_name and not label), (way, value)


def test_every_alert_and_every_value_that_a_fault_tries_has_a_row() -> None:
    rows = {(alert, word) for _, metrics, alert, _ in _ROWS for word in re.findall(r"`([^`]+)`", metrics)}
    assert {alert for alert, _ in rows} == {rule["alert"] for rule in ALERTS}
    for fault in _FAULTS:
        if not any("relibra_X" in series for series in fault["series"]):
            assert {(fault["alert"], value) for value in fault.get("values", ())} <= rows


def test_every_cause_and_obstacle_has_a_row() -> None:
    def listed(metric: str) -> set[str]:
        return {
            value
            for _, metrics, _, _ in _ROWS
            for name, _, values in re.findall(_METRIC, metrics)
            if name == metric
            for value in re.findall(r"`([^`]+)`", values)
        }

    assert listed("relibra_not_balancing") == set(Obstacle) - {Obstacle.NOT_FASTER}
    causes = listed("relibra_fallback_ranks") | listed("relibra_intended_ranks")
    assert causes == set(Cause) - {Cause.MEASURING}, "agents measure in turns"
    assert listed("relibra_planner_redis_losses_total") == set(get_args(Lost))
