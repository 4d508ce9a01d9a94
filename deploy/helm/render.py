"""Render the chart as plain manifests, for kustomize: `python -m deploy.helm.render [--check]`.

The chart is the source, and the manifests in `deploy/kubernetes/overlays` are what it renders to. This needs no Helm.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from deploy.helm.go_template import Templates

CHART = Path(__file__).parent / "relibra"
OVERLAYS = CHART.parents[1] / "kubernetes" / "overlays"
_VALUES = {
    "dev": yaml.safe_load((CHART / "trial.yaml").read_text()),
    # Kustomize adds alerts and dashboard from the same files as the chart.
    "prod": {"monitoring": {"alerts": {"enabled": False}, "dashboard": {"enabled": False}}},
}
_HEADER = (
    "# Rendered from the chart in deploy/helm by `python -m deploy.helm.render`; change the chart, not this file.\n"
)


class _Files:
    def __getitem__(self, name: str) -> Any:
        return {"Get": lambda path: (CHART / path).read_text()}[name]


def render(values: Mapping[str, Any], namespace: str = "relibra") -> str:
    """Return the manifests that `helm template --namespace NAMESPACE --values …` renders."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    templates = Templates(
        {
            "Values": merged(yaml.safe_load((CHART / "values.yaml").read_text()), values),
            "Chart": {"AppVersion": chart["appVersion"]},
            "Release": {"Namespace": namespace},
            "Files": _Files(),
        }
    )
    for path in sorted((CHART / "templates").glob("*.tpl")):
        templates.render(path.read_text())
    rendered = [templates.render(path.read_text()).strip() for path in sorted((CHART / "templates").glob("*.yaml"))]
    return "\n---\n".join(filter(None, rendered)) + "\n"


def merged(values: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return `values` with `overrides` in their place, mappings merged, as Helm does."""
    result = dict(values)
    for key, value in overrides.items():
        old = result.get(key)
        result[key] = merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return result


def main() -> None:
    """Write the manifests; with `--check` compare them with the files."""
    for overlay, values in _VALUES.items():
        path, text = OVERLAYS / overlay / "relibra.yaml", _HEADER + render(values)
        if "--check" not in sys.argv:
            path.write_text(text)
        elif path.read_text() != text:
            sys.exit(f"{path} is not what the chart renders to: run python -m deploy.helm.render")


if __name__ == "__main__":
    main()
