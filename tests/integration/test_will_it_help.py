"""The example of docs/formats.md, run as written: saved responses of an SGLang server, two commands, an answer."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.doc_blocks import blocks
from harness.saved_responses import CONFIG, response

pytestmark = pytest.mark.integration


@pytest.mark.long
def test_saved_responses_of_sglang_become_an_answer_in_two_commands(tmp_path: Path) -> None:
    (block,) = [block for block in blocks("docs/formats.md") if block.language == "bash"]
    commands = block.commands
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
    assert "48 tokens without a recorded route are left out" in said[0]
    assert "Turn it on" in said[1]
    assert "48 recorded sequences" in said[1]
