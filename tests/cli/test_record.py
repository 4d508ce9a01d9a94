import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result
from typer.testing import CliRunner

from harness.devices import device
from harness.engine_payloads import DENSE_FIRST, HYBRID, all_layers, count, nemo_rl, routes, sglang, vllm
from relibra.cli.app import app
from relibra.errors import InvalidInput
from relibra.routing import count_sequences, read_trace

CONFIG = {"num_hidden_layers": 4, "n_routed_experts": 64, "num_experts_per_tok": 4, "first_k_dense_replace": 1}


def run(*args: object) -> Result:
    """Run the command; raise its error."""
    result = CliRunner().invoke(app, [str(arg) for arg in args])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def relibra(*args: object) -> str:
    """Run the command and return its output; raise its error."""
    result = run(*args)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path / "config.json"


def usage(num_rows: int) -> dict[str, int]:
    return {"prompt_tokens": 9, "completion_tokens": num_rows - 8}


def write_responses(path: Path, num_sequences: int = 48) -> list[np.ndarray]:
    """Write responses of an SGLang rollout, in the format of `/generate`; return their routes."""
    rows = [routes(seed, 20 + seed % 7, DENSE_FIRST) for seed in range(num_sequences)]
    with path.open("w") as file:
        for index, each in enumerate(rows):
            meta_info = {"id": f"{index}", "routed_experts": sglang(each, DENSE_FIRST), **usage(len(each))}
            file.write(json.dumps({"text": "...", "meta_info": meta_info}) + "\n")
    return rows


def test_sglang_responses_become_a_trace_that_can_be_planned(config, tmp_path):
    rows = write_responses(tmp_path / "responses.jsonl")
    trace, plan = tmp_path / "trace.npz", tmp_path / "plan.npz"
    printed = relibra("record", tmp_path / "responses.jsonl", "--model-config", config, "--output", trace)
    assert "imbalance of plain EP8" in printed
    assert "do not tell their number of tokens" not in printed
    assert "48 tokens without a recorded route" in printed
    np.testing.assert_array_equal(count_sequences(read_trace(trace)), [count(each, DENSE_FIRST) for each in rows])
    said = json.loads(relibra("plan", trace, "--nodes", 1, "--gpus-per-node", 8, "-o", plan, "--json"))
    info = json.loads(relibra("trace", "info", trace, "--json"))
    assert said["imbalance"]["identity"] == pytest.approx(info["imbalance"]["8"])
    assert said["imbalance"]["planned"] < 1.1 < 1.5 < said["imbalance"]["identity"]


def test_formats_are_detected_and_several_files_become_domains(config, tmp_path):
    rows = [routes(seed, 12, DENSE_FIRST) for seed in range(3)]
    bodies = {
        "vllm": {"choices": [{"routed_experts": vllm(rows[0], DENSE_FIRST)}]},
        "nemo": {"choices": [{"message": {"routed_experts": nemo_rl(rows[1], DENSE_FIRST)}}]},
    }
    for name, body in bodies.items():
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(body))
    padded = np.zeros((1, 13, 4, 4), dtype=np.int16)
    padded[0, :12] = all_layers(rows[2], DENSE_FIRST, "int16")
    np.savez(tmp_path / "verl.npz", routed_experts=padded, attention_mask=np.ones((1, 13), bool))
    sources = [tmp_path / name for name in ("vllm.jsonl", "nemo.jsonl", "verl.npz")]
    printed = relibra("record", *sources, "--model-config", config, "-o", tmp_path / "trace.npz")
    assert "2 sequences do not tell their number of tokens" in printed
    assert "Set return_token_ids in requests with several prompts or choices" in printed
    trace = read_trace(tmp_path / "trace.npz")
    assert trace.domain.tolist() == ["vllm", "nemo", "verl"]
    np.testing.assert_array_equal(count_sequences(trace), [count(each, DENSE_FIRST) for each in rows])


def test_the_model_may_be_given_by_numbers(tmp_path):
    rows = routes(0, 12, HYBRID)
    source = tmp_path / "samples.jsonl"
    source.write_text(json.dumps({"rollout_routed_experts": sglang(rows, HYBRID), "tokens": [0] * 13}))
    model = ("--layers", 6, "--experts", 128, "--top-k", 2, "--dense-layers", "1,3-4")
    printed = relibra("record", source, *model, "-o", tmp_path / "trace.npz")
    assert "1 tokens without a recorded route are left out" in printed
    np.testing.assert_array_equal(read_trace(tmp_path / "trace.npz").routed_experts, rows)


def test_turns_are_joined(config, tmp_path):
    rows = routes(0, 30, DENSE_FIRST)
    source = tmp_path / "turns.jsonl"
    bodies = [
        {"group": 7, "meta_info": {"routed_experts": sglang(rows[:end], DENSE_FIRST), **usage(end)}}
        for end in (10, 20, 30)
    ]
    source.write_text("\n".join(map(json.dumps, bodies)))
    relibra("record", source, "--model-config", config, "--turns-by", "group", "-o", tmp_path / "trace.npz")
    assert read_trace(tmp_path / "trace.npz").offsets.tolist() == [0, 30]


def test_S9_what_is_left_out_is_counted_by_cause_with_a_line_and_the_exit_status_says_so(config, tmp_path):
    rows = write_responses(tmp_path / "responses.jsonl", 5)
    aborted = json.dumps({"text": "", "meta_info": {"routed_experts": None}}) + "\n"
    with (tmp_path / "responses.jsonl").open("a") as file:
        file.write(aborted + "{cut off\n" + aborted)
    args = ("record", tmp_path / "responses.jsonl", "--model-config", config, "-o", tmp_path / "trace.npz")
    result = run(*args)
    assert result.exit_code == 1
    assert f"Left out: 3 of 8 in {tmp_path / 'responses.jsonl'}" in result.stderr
    assert "  2 x line 6: meta_info.routed_experts: expected routed experts, got null" in result.stderr
    assert "  1 x line 7: expected JSON" in result.stderr
    np.testing.assert_array_equal(
        count_sequences(read_trace(tmp_path / "trace.npz")), [count(each, DENSE_FIRST) for each in rows]
    )
    (said,) = json.loads(run(*args, "--json").stdout)["left_out"]
    assert (said["taken"], said["left_out"], [cause["count"] for cause in said["causes"]]) == (5, 3, [2, 1])
    (tmp_path / "trace.npz").unlink()
    with pytest.raises(InvalidInput, match=r"responses\.jsonl, line 6: meta_info\.routed_experts: "):
        run(*args, "--strict")
    assert not (tmp_path / "trace.npz").exists()


def test_S9_a_file_of_which_most_or_all_is_left_out_is_loud(config, tmp_path):
    source, args = tmp_path / "responses.jsonl", ("--model-config", config, "-o", tmp_path / "trace.npz")
    write_responses(source, 1)
    source.write_text(source.read_text() + "x\n" * 9)
    result = run("record", source, *args)
    assert (result.exit_code, "MOST OF THIS FILE IS LEFT OUT: 9 of 10" in result.stderr) == (1, True)
    (tmp_path / "trace.npz").unlink()
    source.write_text("x\n" * 9)
    with pytest.raises(InvalidInput, match=r"line 1: expected JSON.*, and 8 that cannot be read either"):
        run("record", source, *args)
    assert not (tmp_path / "trace.npz").exists()


def test_router_traces_of_all_ranks_keep_their_schedule(config, tmp_path):
    for rank in range(8):
        with (tmp_path / f"router_trace_rank{rank}.jsonl").open("w") as file:
            for step in range(2):
                rows = routes(10 * step + rank, 8, DENSE_FIRST)
                for layer in range(3):
                    record = {"rank": rank, "step": step, "layer": layer + 2, "block": "decoder"}
                    file.write(json.dumps(record | {"topk": 4, "top_indices": rows[:, layer].tolist()}) + "\n")
    sources = sorted(tmp_path.glob("router_trace_rank*.jsonl"))
    printed = relibra("record", *sources, "--model-config", config, "-o", tmp_path / "trace.npz", "--ep-ranks", 4)
    assert "fixed, 2 micro-batches" in printed
    trace = read_trace(tmp_path / "trace.npz")
    assert (int(trace.source_rank.max()), int(trace.ep_group.max())) == (3, 1)
    relibra("plan", tmp_path / "trace.npz", "--nodes", 1, "--gpus-per-node", 4, "-o", tmp_path / "plan.npz")


def test_S7_faults_say_where_and_what_to_do_and_nothing_is_written(config, tmp_path):
    output, source = tmp_path / "trace.npz", tmp_path / "responses.jsonl"
    good = {"meta_info": {"routed_experts": sglang(routes(0, 5, DENSE_FIRST), DENSE_FIRST)}}
    with_config = ("--model-config", config, "-o", output)
    for body, args, message in [
        (good, ("-o", output), "--model-config: expected the model's config.json, or --layers"),
        (good, ("--layers", 3, "--experts", 64, "--top-k", 4), r"responses\.jsonl, line 1: .*expected rows of 12 ids"),
        (good, ("--layers", 0, "--experts", 64, "--top-k", 4), "--layers: expected 1 to 4096"),
        (good, ("--layers", 4, "--experts", 64, "--top-k", 4, "--dense-layers", "3-9"), "--dense-layers: expected"),
        (good, ("--layers", 4, "--experts", 64, "--top-k", 4, "--dense-layers", "x"), "--dense-layers: expected"),
        (good, (*with_config, "--format", "x"), "--format: expected vllm or"),
        (good, (*with_config, "--turns-by", "x"), "line 1: x: expected to name the sequence"),
        (
            good,
            ("--model-config", tmp_path / "none", "-o", output),
            "none: expected a model's config.json, in JSON, got",
        ),
        (good, ("--model-config", config, "-o", tmp_path / "no" / "x"), "--output: expected a file in a folder"),
        ({"routed_experts": "AAAA"}, with_config, "line 1: routed_experts: .* --format sglang"),
        ({"text": "no routing"}, with_config, "line 1: response: expected routed experts"),
    ]:
        source.write_text(json.dumps(body))
        with pytest.raises(InvalidInput, match=message):
            relibra("record", source, *args)
        assert not output.exists()
    source.write_text("{")
    with pytest.raises(InvalidInput, match="line 1: expected JSON"):
        relibra("record", source, *with_config)
    with pytest.raises(InvalidInput, match="absent: expected a file that can be read, got No such file"):
        relibra("record", tmp_path / "absent", *with_config)
    source.write_text(json.dumps({"rank": 0, "layer": 0, "top_indices": [[1, 2, 3, 4]]}) + "\n" + json.dumps(good))
    with pytest.raises(InvalidInput, match="line 2: expected a router_trace record"):
        relibra("record", source, *with_config)
    source.write_text(source.read_text().splitlines()[0])
    with pytest.raises(InvalidInput, match="absent: expected a file that can be read"):
        relibra("record", source, tmp_path / "absent", *with_config)


def test_an_output_that_cannot_be_written_is_refused_and_stays_as_it_was(config, tmp_path):
    write_responses(tmp_path / "responses.jsonl")
    full, kept = device("full", tmp_path), tmp_path / "kept.npz"
    kept.write_bytes(b"as it was")
    kept.chmod(0o400)
    for output, why in ((full, "No space left"), (kept, "read-only")):
        with pytest.raises(InvalidInput, match=rf"--output: expected a file that can be written, got .*{why}"):
            relibra("record", tmp_path / "responses.jsonl", "--model-config", config, "--output", output)
    assert full.is_char_device()
    assert kept.read_bytes() == b"as it was"
