"""Render the chart with Helm as plain manifests, for kustomize: `python -m deploy.helm.render`.

The chart is the source, and the manifests in `deploy/kubernetes/overlays` are what it renders to.
"""

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).parent / "relibra"
OVERLAYS = CHART.parents[1] / "kubernetes" / "overlays"
_VALUES: dict[str, dict[str, Any]] = {
    "dev": yaml.safe_load((CHART / "trial.yaml").read_text()),
    # Kustomize adds alerts and dashboard from the same files as the chart.
    "prod": {"monitoring": {"alerts": {"enabled": False}, "dashboard": {"enabled": False}}},
}
_HEADER = (
    "# Rendered from the chart in deploy/helm by `python -m deploy.helm.render`; change the chart, not this file.\n"
)


def render(values: Mapping[str, Any], namespace: str = "relibra", helm: str = "helm") -> str:
    """Return the manifests that `helm template` renders with these values.

    Raises:
        ValueError: Helm refuses the values; the message is Helm's.
    """
    command = [helm, "template", "relibra", str(CHART), "--namespace", namespace, "--values", "-"]
    done = subprocess.run(command, input=yaml.safe_dump(dict(values)), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ValueError(done.stderr)
    return done.stdout


def overlays(helm: str = "helm") -> dict[Path, str]:
    """Return the text of every overlay's manifests, by file."""
    return {OVERLAYS / name / "relibra.yaml": _HEADER + render(values, helm=helm) for name, values in _VALUES.items()}


if __name__ == "__main__":
    for path, text in overlays().items():
        path.write_text(text)
