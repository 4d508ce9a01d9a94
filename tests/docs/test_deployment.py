"""The page on deployment names files that exist, and creates every secret that the manifests need."""

import functools
import os
import re
import shlex
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from deploy.helm.render import CHART, render
from harness.chart_cases import environment
from harness.doc_blocks import REPOSITORY, blocks
from harness.kubernetes_programs import kustomized, program

PAGE = REPOSITORY / "docs" / "deployment.md"
BLOCKS = blocks(PAGE)
COMMANDS = [command for block in BLOCKS if block.language == "bash" for command in block.commands]
KUBERNETES = REPOSITORY / "deploy" / "kubernetes"


def references(node: Any) -> set[tuple[str, str]]:
    """Return names and keys of secrets and configuration that pods need and that no manifest creates."""
    found: set[tuple[str, str]] = set()
    match node:
        case {"secretKeyRef": {"name": name, "key": key}}:
            found.add((name, key))
        case {"secret": {"secretName": name, "items": items}}:
            found |= {(name, each["key"]) for each in items}
        case {"secret": {"secretName": name}, "name": "tls"}:
            found |= {(name, "tls.crt"), (name, "tls.key")}
        case {"configMap": {"name": "relibra-ca"}}:
            found.add(("relibra-ca", "ca.crt"))
    children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    return found.union(*map(references, children))


def made(command: str) -> set[tuple[str, str]]:
    """Return names and keys of the secret or configuration that a command creates."""
    found = re.search(r" create (?:secret generic|configmap) (\S+) (.*)", command)
    if found is None:
        return set()
    name, options = found.groups()
    if file := re.search(r"--from-env-file=(\S+)", options):
        (key,) = re.findall(rf"`{file[1]}` has one line, `(\w+)=", PAGE.read_text())
        return {(name, key)}
    return {(name, key) for key in re.findall(r"--from-(?:file|literal)=([^ =]+)", options)}


def test_the_page_makes_what_pods_ask_for() -> None:
    examples = [each for path in (KUBERNETES / "examples").iterdir() for each in yaml.safe_load_all(path.read_text())]
    asked = references(kustomized(KUBERNETES / "overlays" / "prod")) | references(examples)
    assert set().union(*map(made, COMMANDS)) == asked


def test_files_services_and_deployments_on_the_page_are_there() -> None:
    containers = yaml.safe_load((REPOSITORY / "docker-compose.yml").read_text())["services"]
    deployed = {
        f"{each['kind']}/{each['metadata']['name']}".lower() for each in kustomized(KUBERNETES / "overlays" / "prod")
    }
    for command in COMMANDS:
        words = shlex.split(command)
        for before, word in pairwise(words):
            if before == "-f":
                assert (REPOSITORY / word).is_file(), command
            if re.match(r"(deployment|deploy|service)/\w+$", word):
                assert word.replace("deploy/", "deployment/") in deployed, command
        named = {word for word in words if re.match(r"(planner|status|redis)(-\d)?$", word)}
        if words[:2] == ["docker", "compose"]:
            assert named <= containers.keys(), command


def test_an_overlay_of_your_own_is_production_with_its_image(tmp_path: Path) -> None:
    (block,) = [block for block in BLOCKS if block.language == "yaml" and "kind: Kustomization" in block.text]
    production = os.path.relpath(KUBERNETES / "overlays" / "prod", tmp_path.resolve())
    (tmp_path / "kustomization.yaml").write_text(block.text.replace("../prod", production))
    objects = kustomized(tmp_path)
    images = {
        container["image"]
        for each in objects
        if each["kind"] == "Deployment"
        for container in each["spec"]["template"]["spec"]["containers"]
    }
    assert images == {"registry.example/relibra/services:0.1.0", "registry.example/relibra/status:0.1.0"}
    planner = next(each for each in objects if each["kind"] == "Deployment" and each["metadata"]["name"] == "planner")
    settings = environment(planner["spec"]["template"])
    assert (settings["RELIBRA_NUM_SOLVERS"], settings["RELIBRA_AUTH"]) == ("4", "required")


def test_the_values_on_the_page_are_values_of_the_chart() -> None:
    (block,) = [block for block in BLOCKS if block.language == "yaml" and "certManager" in block.text]
    objects = yaml.safe_load_all(render(yaml.safe_load(block.text), helm=program("helm")))
    assert {"Certificate", "ExternalSecret"} <= {each["kind"] for each in objects if each}
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    section = PAGE.read_text().partition("## Kubernetes, with Helm")[2]
    named = re.findall(r"`((?:planner|redis|tls|autoscaling|status)\.[\w.]+)(?:: \w+)?`", section)
    assert named
    for path in named:
        functools.reduce(lambda node, name: node[name], path.split("."), values)
