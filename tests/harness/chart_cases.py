"""The Helm chart with the values of several clusters, rendered by Helm."""

from functools import cache
from typing import Any

import yaml

from deploy.helm.render import CHART, render
from harness.kubernetes_programs import program

CASES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "trial": yaml.safe_load((CHART / "trial.yaml").read_text()),
    "cert-manager": {"tls": {"certManager": {"enabled": True, "issuer": {"name": "ours"}, "dnsNames": ["p.example"]}}},
    "external-secrets": {
        "redis": {"externalSecret": {"enabled": True, "store": {"name": "vault"}, "key": "relibra", "property": "url"}}
    },
    "redis-with-password": {
        "redis": {"inCluster": {"enabled": True, "storage": "50Gi", "storageClassName": "fast"}},
        "tls": {"enabled": False},
    },
    "queue-wait": {"autoscaling": {"queueWait": {"enabled": True, "targetSeconds": 0.5}}},
    "elsewhere": {
        "image": {
            "planner": "registry.example/relibra/services",
            "status": "registry.example/relibra/status",
            "tag": "0.1.1",
        },
        "settings": {"NUM_SOLVERS": "4"},
        "autoscaling": {"enabled": False},
        "planner": {"replicas": 3, "pod": {"nodeSelector": {"pool": "cpu"}, "priorityClassName": "high"}},
        "networkPolicy": {
            "monitoring": [{"namespaceSelector": {"matchLabels": {"team": "watchers"}}}],
            "dns": {"ports": [5353], "to": [{"ipBlock": {"cidr": "169.254.20.10/32"}}]},
            "redis": {"ports": [6380, 26379], "to": [{"ipBlock": {"cidr": "10.1.2.0/24"}}]},
        },
        "monitoring": {
            "serviceMonitor": {"labels": {"release": "prometheus"}},
            "alerts": {"labels": {"release": "prometheus"}, "statusUrl": "https://relibra.example"},
        },
    },
    "bare": {
        "networkPolicy": {"enabled": False},
        "monitoring": {
            "serviceMonitor": {"enabled": False},
            "alerts": {"enabled": False},
            "dashboard": {"enabled": False},
        },
    },
}


@cache
def rendered(case: str) -> str:
    """Return the manifests of a case."""
    return render(CASES[case], helm=program("helm"))


def objects_of(case: str) -> list[dict[str, Any]]:
    """Return the objects of a case."""
    return [each for each in yaml.safe_load_all(rendered(case)) if each]


def environment(pod: dict[str, Any]) -> dict[str, str | None]:
    """Return the environment of a pod's only container; None where the value comes from elsewhere."""
    (container,) = pod["spec"]["containers"]
    return {each["name"]: each.get("value") for each in container["env"]}
