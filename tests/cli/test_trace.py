import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from harness.command_line import relibra
from relibra.errors import InvalidTrace
from relibra.routing import RoutingTrace, write_trace

trace_verb = partial(relibra, "trace")


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
    said = trace_verb("validate", tmp_path / "twice.npz", status=1)
    assert "1 of 15 (token, layer) rows have an expert twice, the first is row 3, layer 2: [7, 7]" in said
    (tmp_path / "half.npz").write_bytes(source.read_bytes()[:200])
    assert "half.npz is not valid: " in trace_verb("validate", tmp_path / "half.npz", status=1)
    said = json.loads(trace_verb("validate", tmp_path / "half.npz", "--json", status=1))
    assert not said["is_valid"]
    assert "expected a complete .npz file" in said["reason"]
    with pytest.raises(InvalidTrace, match="no such file"):
        trace_verb("validate", tmp_path / "absent.npz")


@pytest.mark.traces
def test_real_routing_is_described(traces_dir):
    said = json.loads(trace_verb("info", traces_dir / "gpt-oss-20b_mmlu.npz", "--json"))
    assert (said["num_sequences"], said["num_tokens"], said["num_layers"]) == (447, 127241, 24)
    assert 1.2 < said["imbalance"]["8"] < said["imbalance"]["16"] < said["imbalance"]["32"]
