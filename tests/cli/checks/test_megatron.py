"""What the agent hooks into, looked for in the sources of megatron-core."""

from importlib import metadata
from pathlib import Path

from relibra.agent.needs import NEEDS
from relibra.cli.checks import megatron
from relibra.cli.checks.finding import CheckResult


def test_the_installed_megatron_passes_with_its_version():
    (found,) = megatron.examine()
    assert (found.subject, found.verdict) == ("megatron", CheckResult.OK)
    assert found.reason.startswith(f"megatron-core {metadata.version('megatron-core')} has all {len(NEEDS)} ")


def test_S9_a_machine_without_megatron_is_told_what_was_not_checked(monkeypatch):
    monkeypatch.setattr(megatron.PathFinder, "find_spec", lambda *_: None)
    (found,) = megatron.examine()
    assert found.verdict is CheckResult.SKIPPED
    assert "was not looked for" in found.reason


def test_the_sources_of_a_checkout_say_their_version(tmp_path: Path):
    (tmp_path / "megatron" / "core").mkdir(parents=True)
    lines = ["MAJOR = 0", "MINOR = 99", "PATCH = 1", "PRE_RELEASE = 'rc2'"]
    (tmp_path / "megatron" / "core" / "package_info.py").write_text("\n".join(lines))
    assert megatron.version_of(tmp_path) == "0.99.1rc2"


def test_every_missing_hook_is_a_finding(tmp_path: Path):
    found = megatron.judge(tmp_path, "0.99.1")
    failed = [each.reason for each in found if each.verdict is CheckResult.FAILED]
    assert len(failed) == len(NEEDS)
    assert "MoELayer.preprocess(hidden_states, probs, routing_map) (maps logical experts" in failed[1]
    assert found[-1].verdict is CheckResult.WARNING
    assert "cannot give them routing" in found[-1].reason
