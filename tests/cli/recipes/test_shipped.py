import pytest

from relibra.agent.settings import SETTINGS
from relibra.cli.recipes.frameworks.registry import Framework
from relibra.cli.recipes.shipped import find_family, framework_data, is_neutral, known_flags, known_options


@pytest.mark.parametrize("framework", Framework)
def test_defaults_name_their_source_and_are_known_settings(framework):
    data = framework_data(framework)
    assert data["source"]
    assert data["commit"]
    assert set(data["settings"]) <= known_options()


def test_every_setting_of_the_table_is_known_and_judged():
    names = {each.name for each in SETTINGS}
    assert names <= known_options()
    assert known_flags() <= known_options()
    assert not any(is_neutral(name) for name in names)
    assert is_neutral("lr")


@pytest.mark.parametrize(
    ("model", "family"),
    [
        ("deepseek-ai/DeepSeek-V3", "DeepSeek-V3"),
        ("Qwen/Qwen3-30B-A3B-Base", "Qwen3"),
        ("Qwen/Qwen3.5-35B-A3B", "Qwen3.5"),
        ("Qwen3-Next-80B-A3B", "Qwen3-Next"),
        ("zai-org/GLM-4.7-Flash", "GLM-4.7-Flash"),
        ("zai-org/GLM-4.5-Air", "GLM-4.5"),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "Nemotron-3"),
        ("openai/gpt-oss-20b", "gpt-oss"),
        ("Qwen/Qwen3-8B", None),
        ("meta-llama/Llama-3.1-8B", None),
    ],
)
def test_a_model_belongs_to_the_family_of_its_name(model, family):
    found = find_family(model)
    assert (None if found is None else found.name) == family
