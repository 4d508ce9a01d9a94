"""Whether the packages of each role are there, in versions that work together."""

import importlib
import platform
from collections.abc import Iterable, Mapping
from importlib import metadata

from packaging.requirements import Requirement

from relibra.cli.checks.finding import Finding, failed, ok, skipped

_ROLES = {"": "rollout worker", "planner": "planner and status", "agent": "trainer", "megatron": "megatron"}
"""Extra -> who needs it."""


def examine() -> list[Finding]:
    """Compare what is installed with what relibra asks for."""
    wanted = [Requirement(line) for line in metadata.requires("relibra") or ()]
    installed = {each.name: version for each in wanted if (version := _version(each.name)) is not None}
    found = [ok("versions", f"relibra {metadata.version('relibra')}, Python {platform.python_version()}")]
    found += judge(wanted, installed)
    try:
        importlib.import_module("relibra.wire.client")
    except Exception as error:
        fix = f"pip install --upgrade 'protobuf{_specifier(wanted, 'protobuf')}'"
        found.append(failed("versions: wire", f"the wire contract does not load: {error}", fix))
    return found


def judge(wanted: Iterable[Requirement], installed: Mapping[str, str]) -> list[Finding]:
    """Judge role by role.

    Args:
        wanted: of relibra's metadata, with the extra each is of in its marker.
        installed: versions by the names of `wanted`.
    """
    found = []
    wanted = [each for each in wanted if each.name != "relibra"]
    for extra, role in _ROLES.items():
        of_role = [each for each in wanted if _is_of(each, extra)]
        missing = [each.name for each in of_role if each.name not in installed]
        wrong = [
            f"{each.name} {installed[each.name]}, not {each.specifier}"
            for each in of_role
            if each.name in installed and not each.specifier.contains(installed[each.name], prereleases=True)
        ]
        subject, install = f"versions: {role}", f"pip install 'relibra{f'[{extra}]' if extra else ''}'"
        if wrong:
            found.append(failed(subject, "; ".join(wrong), install))
        elif missing and len(missing) == len(of_role):
            found.append(skipped(subject, f"without {', '.join(missing)} this machine is none"))
        elif missing:
            found.append(failed(subject, f"without {', '.join(missing)}", install))
        else:
            found.append(ok(subject, ", ".join(f"{each.name} {installed[each.name]}" for each in of_role)))
    return found


def _is_of(requirement: Requirement, extra: str) -> bool:
    """Whether a role needs it on this system."""
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
    return next((str(each.specifier) for each in wanted if each.name == name), "")
