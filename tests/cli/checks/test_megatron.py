"""What the agent hooks into, looked for in a process that imports megatron-core."""

from importlib import metadata
from pathlib import Path

import pytest

from relibra.agent.needs import NEEDS, Use
from relibra.cli.checks import megatron
from relibra.cli.checks.finding import CheckResult, Finding


def test_the_installed_megatron_passes_with_its_version():
    (found,) = megatron.examine()
    assert (found.subject, found.verdict) == ("megatron", CheckResult.OK)
    assert found.reason == (
        f"megatron-core {metadata.version('megatron-core')} has all {len(NEEDS)} attributes and signatures that the "
        "agent needs"
    )


def examine_with(path: Path, module: str, source: str, monkeypatch: pytest.MonkeyPatch) -> list[Finding]:
    """Examine where Python finds a package of this source before the installed one."""
    folder = path.joinpath(*module.split("."))
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(source)
    monkeypatch.syspath_prepend(path)
    return megatron.examine()


def test_S9_a_machine_without_megatron_is_told_what_was_not_checked(tmp_path, monkeypatch):
    (found,) = examine_with(tmp_path, "megatron", "", monkeypatch)
    assert found.verdict is CheckResult.SKIPPED
    assert found.reason == "megatron-core is not installed: doctor did not check what the agent hooks into"


@pytest.mark.parametrize(
    ("module", "source", "reason"),
    [
        ("torch", "raise ModuleNotFoundError(\"No module named 'torch'\")", "No module named 'torch'"),
        ("megatron.core", "raise OSError('libcudart.so.13: no such file')", "OSError: libcudart.so.13: no such file"),
        ("megatron.core", "import os; os._exit(7)", "the process ended with status 7"),
        ("relibra.agent", "raise ImportError('no agent here')", "ImportError: no agent here"),
    ],
)
def test_S9_what_cannot_be_imported_is_named_and_fails(tmp_path, monkeypatch, module, source, reason):
    (found,) = examine_with(tmp_path, module, source, monkeypatch)
    assert found.verdict is CheckResult.FAILED
    assert found.reason.startswith("megatron-core cannot be imported here, so doctor did not check what the agent")
    assert reason in found.reason
    assert "pip install 'relibra[megatron]'" in found.fix


def test_S9_an_import_that_does_not_end_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(megatron, "_TIMEOUT_S", 0.5)
    (found,) = examine_with(tmp_path, "megatron.core", "import time; time.sleep(60)", monkeypatch)
    assert found.verdict is CheckResult.WARNING
    assert "not imported within 0.5 s: doctor did not check what the agent hooks into" in found.reason


@pytest.mark.long
def test_every_missing_hook_is_a_finding(tmp_path, monkeypatch):
    *lacks, of_replay = examine_with(tmp_path, "megatron.core", "__version__ = '0.99.1'", monkeypatch)
    assert {each.verdict for each in lacks} == {CheckResult.FAILED}
    assert len(lacks) == sum(need.use is not Use.HELD for need in NEEDS)
    assert "0.99.1 lacks megatron.core.transformer.moe.moe_layer.MoELayer.preprocess(hidden_states" in lacks[1].reason
    assert lacks[0].fix == "install a megatron-core that the tests ran on: 0.16 to 0.20"
    assert of_replay.verdict is CheckResult.WARNING
    assert "cannot give them routing" in of_replay.reason


def test_a_version_that_did_not_run_is_said():
    found = {"version": "0.99.1", "num_needs": 3, "lacks": [], "lacks_of_replay": [], "ran": ["0.16", "0.17"]}
    (said,) = megatron.judge(found)
    assert said.verdict is CheckResult.OK
    assert said.reason.endswith("; the tests did not run on this version")
