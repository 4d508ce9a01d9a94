"""Checks that the packages of each role are installed, in versions that work together."""

import importlib
import platform
from collections.abc import Iterable, Mapping
from importlib import metadata

from packaging.requirements import Requirement

from relibra.cli.checks.finding import Finding, failed, ok, skipped

_ROLES = {"": "rollout worker", "planner": "planner and status", "agent": "trainer", "megatron": "megatron"}
"""Extra -> role that needs it."""


def examine() -> list[Finding]:
    """Compare the installed packages with the requirements of relibra."""
    wanted = [Requirement(line) for line in metadata.requires("relibra") or ()]
    installed = {
        requirement.name: version for requirement in wanted if (version := _version(requirement.name)) is not None
    }
    findings = [ok("versions", f"relibra {metadata.version('relibra')}, Python {platform.python_version()}")]
    findings += judge(wanted, installed)
    try:
        importlib.import_module("relibra.wire.client")
    except Exception as error:
        fix = f"pip install --upgrade 'protobuf{_specifier(wanted, 'protobuf')}'"
        findings.append(failed("versions: wire", f"the wire contract cannot be loaded: {error}", fix))
    return findings


def judge(wanted: Iterable[Requirement], installed: Mapping[str, str]) -> list[Finding]:
    """Return one finding for each role.

    Args:
        wanted: the requirements in relibra's metadata, each with its extra in the marker.
        installed: installed version by package name.
    """
    findings = []
    wanted = [requirement for requirement in wanted if requirement.name != "relibra"]
    for extra, role in _ROLES.items():
        of_role = [requirement for requirement in wanted if _is_of(requirement, extra)]
        missing = [requirement.name for requirement in of_role if requirement.name not in installed]
        wrong = [
            f"{requirement.name} {installed[requirement.name]}, not {requirement.specifier}"
            for requirement in of_role
            if requirement.name in installed
            and not requirement.specifier.contains(installed[requirement.name], prereleases=True)
        ]
        subject, install = f"versions: {role}", f"pip install 'relibra{f'[{extra}]' if extra else ''}'"
        if wrong:
            findings.append(failed(subject, "; ".join(wrong), install))
        elif missing and len(missing) == len(of_role):
            findings.append(skipped(subject, f"not for this machine: {', '.join(missing)} not installed"))
        elif missing:
            findings.append(failed(subject, f"{', '.join(missing)} not installed", install))
        else:
            findings.append(
                ok(subject, ", ".join(f"{requirement.name} {installed[requirement.name]}" for requirement in of_role))
            )
    return findings


def _is_of(requirement: Requirement, extra: str) -> bool:
    """Return whether the role of `extra` needs this requirement on this system."""
    marker = requirement.marker
    if not extra:
        return marker is None
    return marker is not None and not marker.evaluate({"extra": ""}) and marker.evaluate({"extra": extra})


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _specifier(wanted: Iterable[Requirement], name: str) -> str:
    return next((str(requirement.specifier) for requirement in wanted if requirement.name == name), "")
