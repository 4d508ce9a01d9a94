"""Manifests of overlays and chart: valid for the Kubernetes API, hardened, and with existing options."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from typer.testing import CliRunner

from harness.chart_cases import CASES, environment, objects_of
from harness.kubernetes_programs import kustomized
from relibra.cli.app import app
from relibra.planner.settings import PlannerSettings
from relibra.status.settings import StatusSettings
from relibra.wire.credentials import Credentials

_ROOT = Path(__file__).parents[2] / "deploy" / "kubernetes"
_VERSIONS = ("1.27", "1.37")
"""The oldest version that the chart takes, and the newest that the validator knows."""
_WRITTEN = sorted(path for path in _ROOT.rglob("*.yaml") if path.name != "kustomization.yaml")
_OF_OPERATORS = {"ServiceMonitor", "PrometheusRule", "Certificate", "ExternalSecret"}
"""Kinds of operators, which Kubernetes has no schemas for; test_monitoring checks the rules."""


def _render(overlay: str) -> list[dict[str, Any]]:
    return kustomized(_ROOT / "overlays" / overlay)


def _pods(objects: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {
        each["metadata"]["name"]: each["spec"]["template"] for each in objects if "template" in each.get("spec", {})
    }


def _known_to_kubernetes(manifest: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the parts that Kubernetes has a schema for: the object, or the jobs and pods that an operator creates."""
    match manifest["kind"]:
        case "JobSet":
            for each in manifest["spec"]["replicatedJobs"]:
                yield {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": each["name"]}} | each["template"]
        case "PyTorchJob":
            for name, each in manifest["spec"]["pytorchReplicaSpecs"].items():
                pod = each["template"]
                yield {"apiVersion": "v1", "kind": "Pod"} | pod | {"metadata": {"name": name} | pod["metadata"]}
        case kind if kind not in _OF_OPERATORS:
            yield manifest


def _check_with_kubernetes(manifest: dict[str, Any]) -> None:
    for each in _known_to_kubernetes(manifest):
        for version in _VERSIONS:
            kubernetes_validate.validate(each, version, strict=True)


@pytest.fixture(scope="module", params=["dev", "prod", *CASES])
def objects(request):
    return objects_of(request.param) if request.param in CASES else _render(request.param)


@pytest.mark.parametrize("path", _WRITTEN, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_manifest_file_is_valid(path):
    for each in yaml.safe_load_all(path.read_text()):
        _check_with_kubernetes(each)


def test_every_rendered_object_is_valid(objects):
    for each in objects:
        _check_with_kubernetes(each)


@pytest.mark.parametrize("path", sorted((_ROOT / "examples").iterdir()), ids=lambda path: path.stem)
def test_examples_are_valid_and_reach_the_planner(path):
    for each in yaml.safe_load_all(path.read_text()):
        _check_with_kubernetes(each)
        text = yaml.dump(each)
        assert "relibra.dev/client: 'true'" in text  # otherwise the network policy blocks it
        assert "planner.relibra.svc.cluster.local:7420" in text


def _clients(example: Path) -> Iterator[dict[str, Any]]:
    """Yield the pod specifications of an example."""
    for manifest in yaml.safe_load_all(example.read_text()):
        for each in _known_to_kubernetes(manifest):
            yield each["spec"]["template"]["spec"] if "template" in each["spec"] else each["spec"]


@pytest.mark.parametrize("path", sorted((_ROOT / "examples").iterdir()), ids=lambda path: path.stem)
def test_S6_clients_in_examples_send_their_token_to_a_planner_with_their_ca_only(path):
    pods = list(_clients(path))
    assert pods
    for pod in pods:
        (container,) = pod["containers"]
        environment = {each["name"]: each.get("value", "token") for each in container["env"]}
        credentials = Credentials.from_env(environment)
        assert credentials.token
        assert credentials.ca_file is not None, "without a CA the connection is not encrypted"
        (mount,) = [each for each in container["volumeMounts"] if Path(each["mountPath"]) == credentials.ca_file.parent]
        (volume,) = [each for each in pod["volumes"] if each["name"] == mount["name"]]
        assert volume["configMap"] == {"name": "relibra-ca"}, "a pod must not start without its CA"


def test_clients_find_every_planner_by_one_name(objects):
    (service,) = [each for each in objects if each["kind"] == "Service" and each["metadata"]["name"] == "planner"]
    assert service["spec"]["clusterIP"] == "None"


def test_mounted_secrets_are_readable_by_the_container_user(objects):
    for name, pod in _pods(objects).items():
        for volume in pod["spec"].get("volumes", ()):
            if volume.get("secret", {}).get("defaultMode", 0o644) & 0o004 == 0:
                assert pod["spec"]["securityContext"]["fsGroup"] == pod["spec"]["securityContext"]["runAsGroup"], name


def test_both_services_mount_the_ca_of_redis_and_the_status_service_no_key():
    pods = _pods(_render("prod"))
    for name in ("planner", "status"):
        (container,) = pods[name]["spec"]["containers"]
        assert {"name": "redis", "mountPath": "/etc/relibra/redis", "readOnly": True} in container["volumeMounts"]
        (volume,) = [each["secret"] for each in pods[name]["spec"]["volumes"] if each["name"] == "redis"]
        assert ([item["key"] for item in volume["items"]], volume["optional"]) == (["ca.crt"], True)
    assert "tls" not in [each["name"] for each in pods["status"]["spec"]["volumes"]]


def test_pods_have_minimal_privileges(objects):
    for name, pod in _pods(objects).items():
        spec = pod["spec"]
        assert spec["securityContext"]["runAsNonRoot"], name
        assert spec["automountServiceAccountToken"] is False, name
        for container in spec["containers"]:
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"], name
            assert not context["allowPrivilegeEscalation"], name
            assert context["capabilities"] == {"drop": ["ALL"]}, name
            assert "memory" in container["resources"]["limits"], name
            assert container["readinessProbe"], name
            assert ("startupProbe" in container) == ("livenessProbe" in container) == (name != "redis"), name
            tag = container["image"].rpartition(":")[2]
            assert tag not in ("", "latest"), name


def test_S6_pods_meet_the_standard_that_their_namespace_enforces(objects):
    """The controls of the Pod Security Standard `restricted`, those of `baseline` included."""
    namespace = yaml.safe_load((_ROOT / "namespace" / "namespace.yaml").read_text())
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    for name, pod in _pods(objects).items():
        spec, shared = pod["spec"], pod["spec"]["securityContext"]
        assert not spec.keys() & {"hostNetwork", "hostPID", "hostIPC"}, name
        assert shared.keys() <= {"runAsNonRoot", "runAsUser", "runAsGroup", "fsGroup", "seccompProfile"}, name
        assert (shared["runAsNonRoot"], shared["seccompProfile"]) == (True, {"type": "RuntimeDefault"}), name
        assert shared["runAsUser"] > 0, name
        kinds = {kind for volume in spec.get("volumes", ()) for kind in volume if kind != "name"}
        assert kinds <= {"configMap", "emptyDir", "persistentVolumeClaim", "projected", "secret"}, name
        for container in [*spec.get("initContainers", ()), *spec["containers"]]:
            context = container["securityContext"]
            assert context.keys() == {"allowPrivilegeEscalation", "readOnlyRootFilesystem", "capabilities"}, name
            assert not any("hostPort" in port for port in container["ports"]), name
            probes = [container.get(f"{kind}Probe", {}) for kind in ("startup", "readiness", "liveness")]
            assert not any("host" in each.get("httpGet", {}) for each in probes), name


def test_services_and_policies_select_pods_that_exist(objects):
    labels = [pod["metadata"]["labels"] for pod in _pods(objects).values()]
    for each in objects:
        selector = {
            "Service": lambda spec: spec["selector"],
            "NetworkPolicy": lambda spec: spec["podSelector"].get("matchLabels", {}),
            "PodDisruptionBudget": lambda spec: spec["selector"]["matchLabels"],
        }.get(each["kind"])
        if selector is not None:
            wanted = selector(each["spec"]).items()
            assert any(wanted <= has.items() for has in labels), each["metadata"]["name"]


def test_redis_for_trials_admits_other_pods_whatever_its_image_was_compiled_with():
    pod = _pods(_render("dev"))["redis"]
    (container,) = pod["spec"]["containers"]
    assert container["command"][2].count("--protected-mode no") == 1
    for option in ("--appendonly yes", "--appendfsync always", "--maxmemory-policy noeviction"):
        assert option in container["command"][2], "acknowledged data must last"


def test_services_are_spread_and_nodes_can_be_drained(objects):
    budgets = {each["metadata"]["name"]: each["spec"] for each in objects if each["kind"] == "PodDisruptionBudget"}
    assert {name: each["maxUnavailable"] for name, each in budgets.items()} == {"planner": 1, "status": 1}
    for name in budgets:
        spread = _pods(objects)[name]["spec"]["topologySpreadConstraints"]
        assert [each["topologyKey"] for each in spread] == ["kubernetes.io/hostname", "topology.kubernetes.io/zone"]
        assert all(each["labelSelector"]["matchLabels"] == {"app.kubernetes.io/name": name} for each in spread)


def test_planners_that_hang_are_restarted_and_those_that_start_or_miss_redis_are_not(objects):
    (container,) = _pods(objects)["planner"]["spec"]["containers"]
    for probe in ("livenessProbe", "startupProbe"):
        assert container[probe]["httpGet"] == {"path": "/livez", "port": "metrics"}, probe
    assert "/livez" not in str(container["readinessProbe"])


def test_a_solve_uses_the_cores_that_the_pod_asks_for(objects):
    (container,) = _pods(objects)["planner"]["spec"]["containers"]
    (threads,) = [each for each in container["env"] if each["name"] == "RELIBRA_NUM_SOLVER_THREADS"]
    assert threads["valueFrom"]["resourceFieldRef"]["resource"] == "requests.cpu"
    assert container["resources"]["requests"]["cpu"]


def test_settings_exist_and_commands_are_valid(objects):
    known = {*PlannerSettings.model_fields, *StatusSettings.model_fields, "log_format"}
    for name, pod in _pods(objects).items():
        for container in pod["spec"]["containers"]:
            if "relibra/" in container["image"]:
                assert {each.removeprefix("RELIBRA_").lower() for each in environment(pod)} <= known
                result = CliRunner().invoke(app, [*container["args"], "--help"])
                assert result.exit_code == 0, (name, result.output)


def test_prod_requires_tokens_and_tls_and_dev_does_not():
    prod, dev = (environment(_pods(_render(overlay))["planner"]) for overlay in ("prod", "dev"))
    assert prod["RELIBRA_AUTH"] == "required"
    assert prod["RELIBRA_TLS_CERT_FILE"]
    assert "RELIBRA_INSECURE" not in prod
    assert dev["RELIBRA_INSECURE"] == "true"


def test_prometheus_scrapes_existing_ports_that_policies_admit():
    objects = _render("prod")
    of_kind = {kind: [each for each in objects if each["kind"] == kind] for kind in ("Service", "NetworkPolicy")}
    (monitor,) = [each for each in objects if each["kind"] == "ServiceMonitor"]
    (wanted,) = monitor["spec"]["selector"]["matchExpressions"]
    assert wanted["key"] == "app.kubernetes.io/name"
    ports = {endpoint["port"] for endpoint in monitor["spec"]["endpoints"]}
    for name in wanted["values"]:
        (service,) = [each for each in of_kind["Service"] if each["metadata"]["labels"].get(wanted["key"]) == name]
        assert ports <= {port["name"] for port in service["spec"]["ports"]}, name
        pod = _pods(objects)[name]
        arguments = pod["spec"]["containers"][0]["args"]
        by_name = {port["name"]: port["containerPort"] for port in pod["spec"]["containers"][0]["ports"]}
        assert arguments[arguments.index("--metrics-port") + 1] == str(by_name["metrics"]), name
        (policy,) = [each for each in of_kind["NetworkPolicy"] if each["metadata"]["name"] == name]
        (rule,) = [each for each in policy["spec"]["ingress"] if {"port": "metrics"} in each["ports"]]
        assert rule["from"] == [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]


def test_no_port_admits_just_anybody():
    policies = [each for each in _render("prod") if each["kind"] == "NetworkPolicy"]
    for policy in policies:
        for rule in policy["spec"].get("ingress", []):
            assert rule["from"], policy["metadata"]["name"]
            assert {"namespaceSelector": {}} not in rule["from"], policy["metadata"]["name"]


def test_prod_includes_alerts_and_dashboard():
    objects = _render("prod")
    assert any(each["kind"] == "PrometheusRule" for each in objects)
    (dashboard,) = [each for each in objects if "grafana_dashboard" in each["metadata"].get("labels", {})]
    assert json.loads(dashboard["data"]["relibra.json"])["title"] == "relibra"
