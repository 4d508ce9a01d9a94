"""The user's story of docs/formats.md, run as written: saved responses of an SGLang server, two commands, an answer."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from engine_payloads import sglang

from relibra.routing import ModelLayers

pytestmark = pytest.mark.integration

PAGE = (Path(__file__).parents[2] / "docs" / "formats.md").read_text(encoding="utf-8")
LAYERS = ModelLayers.uniform(num_layers=24, num_experts=32, top_k=4)
CONFIG = {"num_hidden_layers": 24, "num_local_experts": 32, "num_experts_per_tok": 4}
PROMPT_TOKENS = 30


def response(index: int) -> dict[str, object]:
    """What `/generate` of SGLang answers for a sequence with favourite experts of its own."""
    rng = np.random.default_rng(index)
    favour_LE = np.log(rng.gamma(0.5, 2.0, (24, 32)) + 1e-6)
    rows_TLK = np.argsort(-(rng.gumbel(size=(100 + index, 24, 32)) + favour_LE), axis=-1)[..., :4]
    usage = {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": len(rows_TLK) + 1 - PROMPT_TOKENS}
    return {
        "text": "...",
        "output_ids": [0] * usage["completion_tokens"],
        "meta_info": {"id": f"{index:032x}", "finish_reason": {"type": "stop"}, "cached_tokens": 0}
        | {"routed_experts": sglang(rows_TLK, LAYERS)}
        | usage,
    }


def test_saved_responses_of_sglang_become_an_answer_in_two_commands(tmp_path: Path) -> None:
    (block,) = re.findall(r"```\n(relibra record .*?)```", PAGE, re.S)
    commands = block.splitlines()
    assert len(commands) == 2
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "responses.jsonl").write_text("".join(json.dumps(response(index)) + "\n" for index in range(48)))
    scripts = str(Path(sys.executable).parent)
    assert shutil.which("relibra", path=scripts)
    said = [
        subprocess.run(
            command.split(),
            cwd=tmp_path,
            env=os.environ | {"PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for command in commands
    ]
    assert "48 tokens have no recorded route" in said[0]
    assert "Turn it on." in said[1]
    assert "48 recorded sequences" in said[1]
