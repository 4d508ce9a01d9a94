"""Checks that the installed megatron-core has what the agent hooks into, by reading its sources."""

import sys
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path

from relibra.cli.checks.finding import Finding, failed, ok, skipped, warning

_SUBJECT = "megatron"


def examine() -> list[Finding]:
    """Return the findings about the megatron-core that this Python would import."""
    root = _root()
    if root is None:
        return [skipped(_SUBJECT, "megatron-core is not installed: what the agent hooks into was not looked for")]
    return judge(root, version_of(root))


def judge(root: Path, version: str) -> list[Finding]:
    """Return the findings about a megatron-core.

    Args:
        root: the folder that holds `megatron/core`.
        version: its version.
    """
    from relibra.agent.needed_in_sources import missing_in
    from relibra.agent.needs import NEEDS, RAN, REPLAY_NEEDS

    findings = [
        failed(
            _SUBJECT,
            f"megatron-core {version} lacks {lack}",
            f"install a megatron-core that the tests ran on: {RAN[0]} to {RAN[-1]}",
        )
        for lack in missing_in(root)
    ]
    if not findings:
        what = f"megatron-core {version} has all {len(NEEDS)} attributes and signatures that the agent needs"
        is_tested = ".".join(version.split(".")[:2]) in RAN
        findings.append(ok(_SUBJECT, what if is_tested else f"{what}; the tests did not run on this version"))
    if missing_in(root, REPLAY_NEEDS):
        findings.append(
            warning(
                _SUBJECT,
                "its routers have no router_replay of megatron's kind, so the agent cannot give them routing",
                "use the framework's own replay of routing, or plans from history",
            )
        )
    return findings


def _root() -> Path | None:
    """Return the folder in which Python would find `megatron.core`, without importing it."""
    packages = PathFinder.find_spec("megatron", sys.path)
    folders = [] if packages is None else list(packages.submodule_search_locations or ())
    return next((Path(folder).parent for folder in folders if Path(folder, "core", "__init__.py").is_file()), None)


def version_of(root: Path) -> str:
    """Return the version, also of a checkout that was never installed."""
    info: dict[str, object] = {}
    file = root / "megatron" / "core" / "package_info.py"
    if file.is_file():
        lines = file.read_text(encoding="utf-8").splitlines()
        parts = (line.partition("=") for line in lines if line.startswith(("MAJOR", "MINOR", "PATCH", "PRE_RELEASE")))
        info = {name.strip(): value.strip().strip("\"'") for name, _, value in parts}
    try:
        return "{MAJOR}.{MINOR}.{PATCH}{PRE_RELEASE}".format_map(info)
    except KeyError:
        try:
            return metadata.version("megatron-core")
        except metadata.PackageNotFoundError:
            return "of an unknown version"
