"""The Helm chart: the values that it takes, and what Helm renders with them.

`test_kubernetes.py` checks the objects of every case against the API of Kubernetes.
"""

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.helm.render import CHART, overlays, render
from harness.chart_cases import CASES, environment, objects_of, rendered
from harness.kubernetes_programs import program

_REPOSITORY = Path(__file__).parents[2]
_VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
_TEMPLATES = "".join(path.read_text() for path in sorted((CHART / "templates").iterdir()))


def _by_name(case: str) -> dict[tuple[str, str], dict[str, Any]]:
    return {(each["kind"], each["metadata"]["name"]): each for each in objects_of(case)}


def _pod(case: str, name: str, kind: str = "Deployment") -> dict[str, Any]:
    pod: dict[str, Any] = _by_name(case)[kind, name]["spec"]["template"]
    return pod


def test_the_overlays_are_what_the_chart_renders_to() -> None:
    for path, text in overlays(program("helm")).items():
        assert path.read_text() == text, "run python -m deploy.helm.render"


@pytest.mark.parametrize("case", CASES)
def test_no_rendered_line_ends_with_a_space(case: str) -> None:
    assert re.findall(r".*[ \t]$", rendered(case), re.M) == []


def test_the_chart_has_the_version_of_the_package() -> None:
    project = tomllib.loads((_REPOSITORY / "pyproject.toml").read_text())["project"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == project["version"]


def test_helm_finds_no_fault_with_the_chart() -> None:
    done = subprocess.run([program("helm"), "lint", "--strict", CHART], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"planer": {"replicas": 3}}, "planer"),
        ({"redis": {"inCluster": {"enabeld": True}}}, "enabeld"),
        ({"settings": {"RETAINED_BYTES": 4294967296}}, "RETAINED_BYTES': got number, want string"),
        ({"settings": {"retained_bytes": "1"}}, "'retained_bytes' does not match"),
        ({"redis": {"secretName": ""}}, "/redis/secretName"),
        ({"redis": {"secretName": "", "inCluster": {"enabled": True}}}, "/redis/secretName"),
        ({"tls": {"certManager": {"enabled": True}}}, "/tls/certManager/issuer"),
        ({"redis": {"externalSecret": {"enabled": True}}}, "/redis/externalSecret"),
        ({"networkPolicy": {"redis": {"ports": []}}}, "/networkPolicy/redis/ports"),
    ],
)
def test_the_schema_refuses_what_would_not_work(values: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        render(values, helm=program("helm"))


def test_every_value_is_used() -> None:
    def paths(values: dict[str, Any], before: str = ".Values") -> list[str]:
        found = []
        for name, value in values.items():
            # What a template passes on as a whole has no names of ours.
            path = f"{before}.{name}"
            found += (
                paths(value, path)
                if isinstance(value, dict) and not re.search(rf"{path}\b(?!\.)", _TEMPLATES)
                else [path]
            )
        return found

    assert [path for path in paths(_VALUES) if not re.search(rf"{re.escape(path)}\b", _TEMPLATES)] == []


def test_tokens_cross_the_network_in_the_clear_only_if_something_else_encrypts() -> None:
    planner = environment(_pod("redis-with-password", "planner"))
    assert (planner["RELIBRA_AUTH"], planner["RELIBRA_PLAINTEXT"]) == ("required", "true")
    assert "RELIBRA_PLAINTEXT" not in environment(_pod("defaults", "planner"))


def test_a_redis_in_the_cluster_and_its_callers_share_one_password() -> None:
    redis = _pod("redis-with-password", "redis", "StatefulSet")["spec"]
    assert '--requirepass "$(cat /run/redis/password)"' in redis["containers"][0]["command"][2]
    assert "protected-mode" not in str(redis)
    for name in ("planner", "status"):
        pod = _pod("redis-with-password", name)
        assert environment(pod)["RELIBRA_REDIS_PASSWORD_FILE"] == "/etc/relibra/redis/password"
        (volume,) = [each["secret"] for each in pod["spec"]["volumes"] if each["name"] == "redis"]
        assert (volume["secretName"], volume["items"][0]["key"]) == ("relibra-redis", "password")
    (claim,) = _by_name("redis-with-password")["StatefulSet", "redis"]["spec"]["volumeClaimTemplates"]
    assert (claim["spec"]["storageClassName"], claim["spec"]["resources"]["requests"]["storage"]) == ("fast", "50Gi")


def test_certificate_and_secret_are_made_under_the_names_that_pods_mount() -> None:
    certificate = _by_name("cert-manager")["Certificate", "planner"]["spec"]
    assert certificate["issuerRef"] == {"group": "cert-manager.io", "kind": "ClusterIssuer", "name": "ours"}
    assert {"planner.relibra.svc.cluster.local", "p.example"} <= set(certificate["dnsNames"])
    mounted = [each["secret"]["secretName"] for each in _pod("cert-manager", "planner")["spec"]["volumes"][1:]]
    assert certificate["secretName"] in mounted
    secret = _by_name("external-secrets")["ExternalSecret", "relibra-redis"]["spec"]
    assert secret["data"] == [{"secretKey": "url", "remoteRef": {"key": "relibra", "property": "url"}}]
    (container,) = _pod("external-secrets", "planner")["spec"]["containers"]
    (url,) = [each["valueFrom"]["secretKeyRef"] for each in container["env"] if each["name"] == "RELIBRA_REDIS_URL"]
    assert url == {"name": secret["target"]["name"], "key": "url"}


def test_the_autoscaler_asks_for_the_metric_that_the_adapter_serves() -> None:
    adapter = yaml.safe_load((_REPOSITORY / "deploy" / "prometheus" / "adapter.yaml").read_text())
    (_, queue) = _by_name("queue-wait")["HorizontalPodAutoscaler", "planner"]["spec"]["metrics"]
    assert queue["external"]["metric"]["name"] == adapter["rules"]["external"][0]["name"]["as"]
    assert queue["external"]["target"] == {"type": "Value", "value": "0.5"}
    assert "replicas" not in _by_name("queue-wait")["Deployment", "planner"]["spec"], "the autoscaler sets the number"
    assert _by_name("elsewhere")["Deployment", "planner"]["spec"]["replicas"] == 3


def test_policies_let_out_calls_to_name_servers_and_redis_and_nothing_else() -> None:
    elsewhere = _by_name("elsewhere")
    name_servers, redis = elsewhere["NetworkPolicy", "calls"]["spec"]["egress"]
    assert name_servers["to"] == [{"ipBlock": {"cidr": "169.254.20.10/32"}}]
    assert name_servers["ports"] == [{"port": 5353, "protocol": "UDP"}, {"port": 5353, "protocol": "TCP"}]
    assert redis == {"ports": [{"port": 6380}, {"port": 26379}], "to": [{"ipBlock": {"cidr": "10.1.2.0/24"}}]}
    scrape = elsewhere["NetworkPolicy", "status"]["spec"]["ingress"][1]
    assert scrape["from"] == [{"namespaceSelector": {"matchLabels": {"team": "watchers"}}}]
    for case in CASES:
        policies = [each for (kind, _), each in _by_name(case).items() if kind == "NetworkPolicy"]
        assert bool(policies) == (case != "bare")
        egress = {each["metadata"]["name"] for each in policies if "Egress" in each["spec"]["policyTypes"]}
        assert egress in ({"deny-all", "calls"}, set())


def test_alerts_link_the_runbook_where_people_on_call_reach_it() -> None:
    rules = _by_name("elsewhere")["PrometheusRule", "relibra"]
    assert rules["metadata"]["labels"]["release"] == "prometheus"
    urls = {rule["annotations"]["runbook_url"] for group in rules["spec"]["groups"] for rule in group["rules"]}
    assert urls
    assert all(each.startswith("https://relibra.example/runbook#") for each in urls)


def test_another_namespace_reaches_every_name() -> None:
    assert "planner.moe.svc.cluster.local" in render(CASES["cert-manager"], "moe", program("helm"))
    assert "status.moe.svc" in render(CASES["trial"], "moe", program("helm"))
