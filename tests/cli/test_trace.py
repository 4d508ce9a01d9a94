import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from harness.devices import device
from relibra.cli.app import app
from relibra.errors import InvalidInput, InvalidTrace
from relibra.routing import RoutingTrace, read_trace, write_trace


def trace_verb(*args: object, exit_code: int = 0) -> str:
    result = CliRunner().invoke(app, ["trace", *map(str, args)])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == exit_code, result.output
    return result.stdout


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A trace of 60 sequences whose tokens all go to experts 0 and 1 of 16."""
    write_trace(
        tmp_path / "trace.npz",
        RoutingTrace(
            routed_experts=np.tile(np.array([[0, 1]], np.uint8), (600, 3, 1)),
            offsets=np.arange(0, 601, 10),
            num_experts=16,
            domain=np.array(["math", "code/x", "chat"] * 20),
        ),
    )
    return tmp_path / "trace.npz"


def test_info_shows_what_is_in_a_trace_at_a_glance(source):
    said = json.loads(trace_verb("info", source, "--json"))
    assert (said["num_sequences"], said["num_tokens"], said["num_layers"], said["num_experts"]) == (60, 600, 3, 16)
    assert said["tokens_per_sequence"] == {"least": 10, "median": 10, "most": 10}
    assert said["domains"] == {"chat": 20, "code/x": 20, "math": 20}
    # Both experts are at home on rank 0 of 8, or on the first two of 16 ranks; 32 ranks do not divide 16 experts.
    assert said["imbalance"] == {"8": 8.0, "16": 8.0, "32": None}
    printed = trace_verb("info", source)
    for label in (
        "sequences",
        "tokens",
        "10 to 10, median 10",
        "16, top 2",
        "math 20",
        "imbalance of plain EP8",
        "8.000",
    ):
        assert label in printed


def test_validate_passes_fails_or_refuses(source, tmp_path):
    assert "valid, 60 sequences, 600 tokens" in trace_verb("validate", source)
    twice = np.tile(np.array([[0, 1]], np.uint8), (5, 3, 1))
    twice[3, 2] = 7
    write_trace(tmp_path / "twice.npz", RoutingTrace(routed_experts=twice, offsets=np.array([0, 5]), num_experts=16))
    said = trace_verb("validate", tmp_path / "twice.npz", exit_code=1)
    assert "1 of 15 (token, layer) rows have an expert twice, the first is row 3, layer 2: [7, 7]" in said
    (tmp_path / "half.npz").write_bytes(source.read_bytes()[:200])
    assert "half.npz is not valid: " in trace_verb("validate", tmp_path / "half.npz", exit_code=1)
    said = json.loads(trace_verb("validate", tmp_path / "half.npz", "--json", exit_code=1))
    assert not said["is_valid"]
    assert "expected a complete .npz file" in said["reason"]
    with pytest.raises(InvalidTrace, match="no such file"):
        trace_verb("validate", tmp_path / "absent.npz")


def test_merging_the_parts_of_a_split_restores_the_trace(source, tmp_path):
    folder = tmp_path / "parts"
    folder.mkdir()
    said = json.loads(trace_verb("split", source, "--parts", 4, "-o", folder, "--json"))
    parts = sorted(folder.iterdir())
    assert said == [{"trace": str(each), "num_sequences": 15, "num_tokens": 150} for each in parts]
    assert [each.name for each in parts] == [f"trace-000{index}.npz" for index in range(4)]
    said = json.loads(trace_verb("merge", *parts, "-o", tmp_path / "whole.npz", "--json"))
    assert said == {"trace": str(tmp_path / "whole.npz"), "num_sequences": 60, "num_tokens": 600}
    before, after = read_trace(source), read_trace(tmp_path / "whole.npz")
    np.testing.assert_array_equal(before.domain, after.domain)
    np.testing.assert_array_equal(before.offsets, after.offsets)


def test_split_by_domain_names_files_after_domains(source, tmp_path):
    trace_verb("split", source, "--by-domain", "-o", tmp_path)
    assert read_trace(tmp_path / "trace-code_x.npz").num_sequences == 20
    for args in (("--parts", 2, "--by-domain"), ()):
        with pytest.raises(InvalidInput, match="split: expected either --parts or --by-domain"):
            trace_verb("split", source, *args)
    with pytest.raises(InvalidInput, match="--output-dir: expected a folder that exists"):
        trace_verb("split", source, "--parts", 2, "-o", tmp_path / "absent")
    with pytest.raises(InvalidInput, match="--output: expected a file that can be written"):
        trace_verb("merge", source, "-o", tmp_path / "absent" / "x.npz")


def test_domains_whose_file_names_would_be_equal_get_files_of_their_own(tmp_path):
    domains = ["a/b"] * 2 + ["a_b"] * 3 + ["a b"] + ["c/d"] * 4
    trace = RoutingTrace(
        routed_experts=np.tile(np.array([[0, 1]], np.uint8), (10, 3, 1)),
        offsets=np.arange(11),
        num_experts=16,
        domain=np.array(domains),
    )
    write_trace(tmp_path / "trace.npz", trace)
    folder = tmp_path / "parts"
    folder.mkdir()
    said = trace_verb("split", tmp_path / "trace.npz", "--by-domain", "-o", folder)
    as_json = json.loads(trace_verb("split", tmp_path / "trace.npz", "--by-domain", "-o", folder, "--json"))
    assert sorted(each["domain"] for each in as_json) == sorted({*domains})
    parts = [read_trace(each) for each in sorted(folder.iterdir())]
    assert sorted(np.concatenate([each.domain for each in parts])) == sorted(domains)
    assert [set(each.domain) for each in parts] == [{name} for name in (each.domain[0] for each in parts)]
    assert (folder / "trace-c_d.npz").exists(), "a name that nothing else takes stays readable"
    assert "3 sequences of domain 'a_b'" in said
    assert "4 sequences of domain 'c/d'" in said


def test_an_output_that_cannot_be_written_is_refused_and_stays_as_it_was(source, tmp_path):
    full = device("full", tmp_path)
    before = source.read_bytes()
    source.chmod(0o400)
    with pytest.raises(InvalidInput, match=r"--output: expected a file that can be written, got .*No space left"):
        trace_verb("merge", source, "-o", full)
    with pytest.raises(InvalidInput, match=r"--output: expected a file that can be written, got .*read-only"):
        trace_verb("merge", source, source, "-o", source)
    assert full.is_char_device()
    assert source.read_bytes() == before


@pytest.mark.traces
def test_real_routing_is_described(traces_dir):
    said = json.loads(trace_verb("info", traces_dir / "gpt-oss-20b_mmlu.npz", "--json"))
    assert (said["num_sequences"], said["num_tokens"], said["num_layers"]) == (447, 127241, 24)
    assert 1.2 < said["imbalance"]["8"] < said["imbalance"]["16"] < said["imbalance"]["32"]
