"""Dashboard and alerts: valid queries of existing metrics, and a runbook section for each alert."""

import json
import re
import shlex
import subprocess
import urllib.request
from pathlib import Path

import pytest
import yaml
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from harness.alerts import ALERTS, RULES_FILE, RUNBOOK, promtool
from harness.services import CLUSTER, MODEL, Service, redis_server, redis_url, run, store  # noqa: F401
from harness.watched_job import WatchedJob
from relibra.status import create_app
from relibra.status.settings import StatusSettings
from relibra.store import Store
from relibra.store.tokens import Role

_REPOSITORY = Path(__file__).parents[2]
_DEPLOY = _REPOSITORY / "deploy"
_WORDS = {
    "by",
    "on",
    "group_left",
    "or",
    "sum",
    "max",
    "rate",
    "increase",
    "histogram_quantile",
    "absent",
    "unless",
    "vector",
    "changes",
    "clamp_min",
    "and",
    "abs",
    "count",
    "time",
    "last_over_time",
    "max_over_time",
    "up",
}
"""Words in queries that are neither metrics nor labels."""


def _dashboard_queries() -> list[str]:
    panels = json.loads((_DEPLOY / "grafana" / "relibra.json").read_text())["panels"]
    queries = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    return [each.replace("$__rate_interval", "5m").replace("$job", ".*") for each in queries]


def _adapter_queries() -> list[str]:
    """The queries of external metrics, with the labels that the adapter puts in."""
    rules = yaml.safe_load((_DEPLOY / "prometheus" / "adapter.yaml").read_text())["rules"]["external"]
    return [each["metricsQuery"].replace("<<.LabelMatchers>>", 'namespace="relibra"') for each in rules]


@pytest.fixture(scope="module")
def rules_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The rules without the wrapping for the operator, unwrapped by the command that Compose uses."""
    (command,) = re.findall(r"sed -n '.*?' /etc/relibra/alerts.yaml", (_REPOSITORY / "docker-compose.yml").read_text())
    path = tmp_path_factory.mktemp("rules") / "alerts.yaml"
    source = shlex.quote(str(RULES_FILE))
    with path.open("w") as file:
        subprocess.run(command.replace("/etc/relibra/alerts.yaml", source), shell=True, stdout=file, check=True)
    return path


@pytest.fixture
def exposed(store: Store, run, redis_url: str, tmp_path: Path) -> tuple[set[str], set[str]]:  # noqa: F811
    """The names and labels of all metrics that planner and status service expose."""
    job = WatchedJob(store, "job", model=MODEL, cluster=CLUSTER, num_micro_batches=2)

    async def fill() -> None:
        await job.register()
        await job.report(1, await job.plan(1))
        await store.create_token("job", Role.TRAINER, lifetime_s=3600)

    run(fill())
    app = create_app(Store.open(redis_url), StatusSettings(redis_url=redis_url))
    with TestClient(app, base_url="http://localhost") as http:
        text = http.get("/metrics").text
    planner = Service("planner", redis_url, tmp_path, RELIBRA_METRICS_PORT="0")
    try:
        (address,) = re.findall(r"metrics on (\S+)", planner.log())
        text += urllib.request.urlopen(address, timeout=60).read().decode()
    finally:
        planner.stop()
    suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_count", "_sum"]}
    families = list(text_string_to_metric_families(text))
    names = {family.name + suffix for family in families for suffix in suffixes.get(family.type, [""])}
    # A planner exposes these labels only after the first call or solve.
    labels = {label for family in families for sample in family.samples for label in sample.labels}
    return names, labels | {"method", "error", "outcome", "instance", "namespace", "job"}


@pytest.mark.integration
def test_queries_use_exposed_metrics_only(exposed: tuple[set[str], set[str]]) -> None:
    names, labels = exposed
    for query in [*_dashboard_queries(), *_adapter_queries(), *(each["expr"] for each in ALERTS)]:
        bare = re.sub(r'"[^"]*"', "", query)
        assert set(re.findall(r"\brelibra_\w+", bare)) <= names, query
        words = set(re.findall(r"\b[a-z_]+\b", re.sub(r"\[[^]]*\]", "", bare)))
        assert {each for each in words if not each.startswith("relibra_")} <= labels | _WORDS, query


@pytest.mark.integration
def test_exposed_metrics_are_documented(exposed: tuple[set[str], set[str]]) -> None:
    text = "".join((_REPOSITORY / "docs" / page).read_text() for page in ("service.md", "status.md"))
    documented = set(re.findall(r"^\| `(relibra_\w+)`", text, re.M))
    names = {re.sub(r"_(bucket|count|sum)$", "", name) for name in exposed[0] if not name.endswith("_created")}
    assert {name for name in names if name.startswith("relibra_")} == documented


def test_queries_are_valid(tmp_path: Path) -> None:
    rules = [
        {"record": f"query:{index}", "expr": query}
        for index, query in enumerate([*_dashboard_queries(), *_adapter_queries()])
    ]
    path = tmp_path / "queries.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    promtool("check", "rules", path)


def test_the_dashboard_is_complete() -> None:
    dashboard = json.loads((_DEPLOY / "grafana" / "relibra.json").read_text())
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    assert {panel["datasource"]["uid"] for panel in panels} == {"${datasource}"}
    for panel in panels:
        assert panel["title"], panel
        assert panel["description"], panel["title"]
        assert panel["targets"], panel["title"]
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24, panel["title"]


def test_rules_are_valid(rules_file: Path) -> None:
    promtool("check", "rules", rules_file)


def test_alerts_fire_when_they_should_and_not_before(rules_file: Path) -> None:
    cases = Path(__file__).with_name("alerts.yaml").read_text()
    path = rules_file.with_name("cases.yaml")
    path.write_text(cases)
    promtool("test", "rules", path)


def test_scrape_targets_in_compose_exist() -> None:
    path = _DEPLOY / "prometheus" / "prometheus.yaml"
    promtool("check", "config", "--syntax-only", path)
    services = yaml.safe_load((_REPOSITORY / "docker-compose.yml").read_text())["services"]
    for target in yaml.safe_load(path.read_text())["scrape_configs"][0]["static_configs"][0]["targets"]:
        name, _, port = target.partition(":")
        command = services[name]["command"]
        assert command[command.index("--metrics-port") + 1] == port


def test_every_alert_has_a_runbook_section_and_every_section_an_alert() -> None:
    sections = re.findall(r"^## (Relibra\w+)\n\n\*(\w+)\.\*(.*?)(?=^## |\Z)", RUNBOOK, re.M | re.S)
    found = {name: (severity.lower(), body) for name, severity, body in sections}
    assert set(re.findall(r"^## (Relibra\w+)", RUNBOOK, re.M)) == set(found)
    assert {each["alert"] for each in ALERTS} == set(found)
    for each in ALERTS:
        severity, body = found[each["alert"]]
        assert each["labels"] == {"severity": severity}
        assert each["annotations"]["runbook_url"] == f"http://127.0.0.1:7421/runbook#{each['alert'].lower()}"
        assert "**Look at**" in body or "| do |" in body, each["alert"]
        assert "**Do**" in body or "| do |" in body, each["alert"]


def test_links_inside_the_runbook_resolve() -> None:
    anchors = {each.lower().replace(" ", "-") for each in re.findall(r"^##+ ([\w ]+)$", RUNBOOK, re.M)}
    assert set(re.findall(r"\]\(#([^)]*)\)", RUNBOOK)) <= anchors
