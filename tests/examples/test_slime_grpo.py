"""The example of slime has the lines of slime's page, and relibra takes it. `tests/frameworks` trains as it says."""

from pathlib import Path

from harness.doc_blocks import REPOSITORY, blocks
from relibra.cli.checks.finding import CheckResult
from relibra.cli.checks.recipe import examine

LAUNCHER = REPOSITORY / "examples" / "slime_grpo" / "run.sh"


def test_the_example_has_the_lines_of_the_page_and_marks_those_of_relibra() -> None:
    plug_in, replay = [block for block in blocks("docs/integrations/slime.md") if block.language == "text"][:2]
    settings = dict(line.strip().partition(" # ")[::2] for line in LAUNCHER.read_text().splitlines())
    wanted = plug_in.text.replace("planner:7420", "embedded").splitlines()
    assert all(settings[line].startswith("relibra") for line in wanted)
    assert sum(comment.startswith("relibra") for comment in settings.values()) == len(wanted)
    assert replay.text.split()[0] in settings


def test_relibra_takes_the_example(tmp_path: Path) -> None:
    models = tmp_path / "scripts" / "models" / "qwen3-30B-A3B.sh"
    models.parent.mkdir(parents=True)
    models.write_text("MODEL_ARGS=(--num-layers 48 --num-experts 128 --moe-router-topk 8 --moe-grouped-gemm)\n")
    verdict, plug_in, *found = examine(LAUNCHER, None, [f"SLIME_DIR={tmp_path}"])
    assert verdict.reason.startswith("taken"), verdict
    assert plug_in.verdict is CheckResult.OK
    assert not [each for each in found if each.verdict is CheckResult.FAILED or "replay: it is off" in each.reason]
