"""Outputs of engines, reported to a real planner."""

import json
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest

from harness.engine_payloads import sglang, vllm, vllm_in_process
from harness.services import CLUSTER, MODEL, Service, routed_experts
from relibra.errors import InvalidInput, NotFound
from relibra.planning import Schedule
from relibra.rollout import EngineReporter, RolloutReporter
from relibra.routing import ModelLayers
from relibra.routing.partial_rollout import Keep, join
from relibra.routing.responses import decode_response
from relibra.wire.client import PlannerClient

LAYERS = ModelLayers(num_experts=MODEL.num_experts, top_k=MODEL.top_k, is_moe=(False, True, True, True))


def reporter_of(planner: Service, job_id: str) -> RolloutReporter:
    return RolloutReporter(planner.address, job_id, num_experts=MODEL.num_experts)


def request_output(request_id: str, *rows_TLK: np.ndarray) -> SimpleNamespace:
    """Return an output like vLLM's `RequestOutput`, with a prompt of three tokens."""
    outputs = [
        SimpleNamespace(index=index, token_ids=[7] * (len(rows) - 2), routed_experts=vllm_in_process(rows, LAYERS))
        for index, rows in enumerate(rows_TLK)
    ]
    return SimpleNamespace(request_id=request_id, prompt_token_ids=[7] * 3, outputs=outputs, finished=True)


def test_the_same_routing_from_every_engine_is_the_same_sequence(shared_planner: Service, job_id: str) -> None:
    rows = routed_experts(0, 9)
    usage = {"prompt_tokens": 4, "completion_tokens": 6}
    with reporter_of(shared_planner, job_id) as reporter:
        engine_reporter = EngineReporter(reporter, LAYERS)
        assert engine_reporter.report_output(1, request_output("seq", rows)) == ["seq"]
        # Both have one name, so different counts would be a conflict.
        vllm_body = {"choices": [{"routed_experts": vllm(rows, LAYERS)}], "usage": usage}
        assert engine_reporter.report_response(1, "seq", json.dumps(vllm_body).encode()) == ["seq"]
        sglang_body = {"meta_info": {"routed_experts": sglang(rows, LAYERS)} | usage}
        assert engine_reporter.report_response(1, "seq", sglang_body) == ["seq"]
        chunks = {"meta_info": {"id": "x"} | usage}, {"meta_info": sglang_body["meta_info"] | {"id": "x"}}
        stream = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
        assert engine_reporter.report_response(1, "seq", stream) == ["seq"]
        assert engine_reporter.report_response(1, "seq", [sglang_body], format_name="sglang", start=0) == ["seq"]
        reporter.report(1, "seq", rows)
        assert reporter.flush() == 6


def test_several_completions_of_a_request_get_names_of_their_own(
    client: PlannerClient, shared_planner: Service, job_id: str
) -> None:
    with reporter_of(shared_planner, job_id) as reporter:
        output = request_output("req", *(routed_experts(seed, 6 + seed) for seed in range(3)))
        names = EngineReporter(reporter, LAYERS).report_output(1, output)
        assert names == ["req/0", "req/1", "req/2"]
        assert reporter.flush() == 3
    client.submit_schedule(job_id, 1, names, Schedule.round_robin(3, 1, CLUSTER))


def test_S9_unfinished_outputs_are_refused_and_rows_of_all_tokens_beside_the_last_ones_are_taken(
    shared_planner: Service, job_id: str
) -> None:
    rows = routed_experts(0, 9)  # a prompt of 3 tokens, and 7 that were generated
    with reporter_of(shared_planner, job_id) as reporter:
        engine_reporter = EngineReporter(reporter, LAYERS)
        output = request_output("seq", rows)
        output.finished = False
        with pytest.raises(InvalidInput, match=r"output\.finished: expected true"):
            engine_reporter.report_output(1, output)
        output.finished = True
        for num_last in (1, 6):  # what a DELTA output has: the last tokens and the rows of all
            output.outputs[0].token_ids = [7] * num_last
            output.request_id = f"delta-{num_last}"
            with mock.patch.object(reporter, "report", wraps=reporter.report) as reported:
                assert engine_reporter.report_output(1, output) == [output.request_id]
            assert np.array_equal(reported.call_args.args[2], rows)
        output = request_output("seq", rows)
        output.outputs[0].routed_experts = output.outputs[0].routed_experts[2:]
        assert engine_reporter.report_output(1, output) == engine_reporter.report_output(1, output, start=2) == ["seq"]
        output.outputs[0].token_ids = [7] * 6
        assert engine_reporter.report_output(1, output, start=2) == ["seq"]
        output.outputs[0].token_ids = [7] * 8
        with pytest.raises(InvalidInput, match="expected rows from token 2 to the last but one of 11, got 7 rows"):
            engine_reporter.report_output(1, output, start=2)
        assert reporter.flush() == 5


def test_S9_a_response_without_a_place_is_said_once(
    shared_planner: Service, job_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    with reporter_of(shared_planner, job_id) as reporter:
        engine_reporter = EngineReporter(reporter, LAYERS)
        for index in range(3):
            body = {"choices": [{"routed_experts": vllm(routed_experts(index, 5), LAYERS)}]}
            engine_reporter.report_response(1, f"seq-{index}", body)
        assert reporter.flush() == 3
    said = [each.getMessage() for each in caplog.records if "its number of tokens" in each.getMessage()]
    assert [each.split()[0] for each in said] == ["seq-0"]


def test_turns_that_send_the_history_again_are_one_sequence(shared_planner: Service, job_id: str) -> None:
    rows = routed_experts(0, 30)
    turns = [{"meta_info": {"routed_experts": sglang(rows[:end], LAYERS)}} for end in (10, 20, 30)]
    pieces = [decode_response(each, LAYERS, start=0)[0] for each in turns]
    whole = join(join(pieces[0], pieces[1], Keep.LATER), pieces[2], Keep.LATER)
    with reporter_of(shared_planner, job_id) as reporter:
        assert EngineReporter(reporter, LAYERS).report_routing(1, "seq", whole)
        reporter.report(1, "seq", rows)
        assert reporter.flush() == 2


@pytest.mark.parametrize(
    ("response", "message"),
    [
        (b"{", "response: expected JSON"),
        ("\ud800", "response: expected JSON"),
        ({"choices": [{"text": "x"}]}, "response: expected routed experts"),
        ({"meta_info": {"routed_experts": "AAAA"}}, r"meta_info\.routed_experts: expected"),
    ],
)
def test_S7_responses_that_are_none_are_refused_at_once(response: object, message: str) -> None:
    reporter = RolloutReporter("127.0.0.1:1", "job", num_experts=MODEL.num_experts)
    with pytest.raises(InvalidInput, match=message):
        EngineReporter(reporter, LAYERS).report_response(1, "seq", response)


def test_nothing_of_an_output_is_reported_where_a_part_of_it_is_refused(
    client: PlannerClient, shared_planner: Service, job_id: str
) -> None:
    with reporter_of(shared_planner, job_id) as reporter:
        output = request_output("req", routed_experts(0, 6), routed_experts(1, 6))
        output.outputs[1].routed_experts = None
        with pytest.raises(InvalidInput, match=r"outputs\[1\]\.routed_experts: expected routed experts .*FINAL_ONLY"):
            EngineReporter(reporter, LAYERS).report_output(1, output)
        assert reporter.flush() == 0
    with pytest.raises(NotFound):
        client.submit_schedule(job_id, 1, ["req/0"], Schedule.round_robin(1, 1, CLUSTER))
