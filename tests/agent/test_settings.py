"""The table of settings. tests/distributed/test_refusals.py attaches to models that it refuses."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from relibra.agent.setting import Part, State
from relibra.agent.settings import SETTINGS, refusals

TESTS = Path(__file__).parents[1]
WITHOUT_TORCH = """
import sys
sys.modules |= {"torch": None, "megatron": None}
from relibra.agent import refusals, settings
"""


def test_the_table_can_be_imported_without_torch():
    subprocess.run([sys.executable, "-c", WITHOUT_TORCH], check=True)


def test_each_setting_has_one_entry():
    names = [each.name for each in SETTINGS]
    assert sorted(set(names)) == sorted(names)


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda each: each.name)
def test_an_entry_says_what_runs_or_why_it_does_not(setting):
    assert not setting.tested or (TESTS / setting.tested).is_file()
    assert bool(setting.runs) == (setting.state is not State.REFUSED)
    assert bool(setting.what) == bool(setting.instead) == bool(setting.cost) == (setting.state is not State.RUNS)


def test_a_refusal_names_the_setting_the_alternative_and_its_cost():
    config = SimpleNamespace(use_megatron_fsdp=False, num_distributed_optimizer_instances=2)
    (refusal,) = refusals(Part.DDP, config)
    assert refusal.setting == "num_distributed_optimizer_instances"
    assert refusal.alternative == "num_distributed_optimizer_instances=1"
    assert refusal.cost == "gradients are reduced over all data-parallel ranks at once"


@pytest.mark.parametrize("name", ["cuda_graph_scope", "cuda_graph_modules"])
@pytest.mark.parametrize(("scopes", "is_taken"), [("attn,mlp", True), (["attn"], True), ("attn,moe", False)])
def test_scopes_of_graphs_may_be_a_text_or_a_list(name, scopes, is_taken):
    config = SimpleNamespace(**{"cuda_graph_impl": "transformer_engine", "cuda_graph_scope": None, name: scopes})
    setting = next(each for each in SETTINGS if each.name == "cuda_graph_impl")
    assert setting.is_refused(config) is not is_taken
