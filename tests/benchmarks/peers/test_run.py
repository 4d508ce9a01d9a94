"""The judge is the simulation, and it judges a made-up peer as it judges our own policy that does the same."""

from pathlib import Path

import pytest

from benchmarks.peers import run
from benchmarks.peers.peer import Answer, Decides, Peer
from relibra.errors import InvalidInput
from relibra.evaluation.assignment import Assignment, at_home
from relibra.evaluation.baselines.eplb import eplb
from relibra.evaluation.baselines.ultraep import ultraep
from relibra.evaluation.simulation import simulate


def made_up(decide, *, decides=Decides.EACH_STEP, ours=None) -> Peer:
    def start(folder, model, cluster):
        return lambda load_MLE: Answer(assignment=decide(load_MLE, model, cluster), cpu_s=0.5)

    return Peer(name="made up", checkout="made-up", file="planner.py", decides=decides, start=start, ours=ours)


@pytest.fixture(scope="module")
def judged(steps, question):
    peer = made_up(eplb, ours=eplb)
    return {row["planner"]: row for row in run.judge(steps, question, [peer], Path("nowhere"))}


@pytest.mark.long
def test_a_peer_is_judged_as_our_policy_of_the_same_decisions(judged, steps, question):
    before, now = steps
    (expected,) = simulate(now, before, question.training, ["eplb-oracle"])
    peer = judged["made up"]
    assert (peer["imbalance"], peer["of_balanced"]) == (expected.imbalance, expected.of_balanced.mid)
    assert (peer["num_moved_experts"], peer["replicas_per_cell"]) == (
        expected.num_moved_experts,
        expected.replicas_per_cell,
    )
    assert (peer["same_as_ours"], peer["imbalance_of_ours"]) == (1.0, expected.imbalance)


def test_relibra_and_plain_are_judged_beside_it(judged):
    assert list(judged) == ["plain", "relibra", "replicate-only", "ultraep", "made up"]
    assert judged["relibra"]["imbalance"] < judged["made up"]["imbalance"] < judged["plain"]["imbalance"]


@pytest.mark.long
def test_time_counts_per_layer_or_per_cell(judged, steps, question):
    assert judged["made up"]["cpu_ms"] == 500
    assert judged["made up"]["cpu_us_per_decision"] == 500e3 / 2
    peer = made_up(ultraep, decides=Decides.EACH_CELL)
    assert run.judge(steps, question, [peer], Path("nowhere"))[-1]["cpu_us_per_decision"] == 500e3 / (2 * 3)


def test_an_answer_that_loses_tokens_is_refused_by_the_name_of_the_peer(steps, question):
    def forgetful(load_MLE, model, cluster) -> Assignment:
        kept_MLE = load_MLE.copy()
        kept_MLE[1, 0, 3] -= 1
        return at_home(kept_MLE, cluster.identity_placement(model))

    with pytest.raises(InvalidInput, match=r"answer of made up: expected \d+ tokens of expert 3 in row 1, layer 0"):
        run.judge(steps, question, [made_up(forgetful)], Path("nowhere"))


@pytest.mark.long
def test_a_missing_checkout_is_named_on_the_screen_and_in_the_results(tmp_path, monkeypatch, capsys, steps, question):
    code = tmp_path / "made-up" / "planner.py"
    code.parent.mkdir()
    code.write_text("")
    absent = Peer(name="absent", checkout="gone", file="x.py", decides=Decides.EACH_CELL, start=made_up(None).start)
    monkeypatch.setattr(run, "PEERS", (made_up(eplb), absent))
    monkeypatch.setattr(run, "CASES", {"small": (8,)})
    monkeypatch.setattr(run, "steps_of", lambda model, ep: steps)
    monkeypatch.setattr(run, "question", lambda model, ep: question)
    written = {}
    monkeypatch.setattr(run.results, "write", lambda name, rows, **settings: written.update(settings, rows=rows))
    monkeypatch.setattr("sys.argv", ["peers", str(tmp_path)])
    run.main()
    assert "LEFT OUT: absent: there is no gone/x.py" in capsys.readouterr().out
    assert written["left_out"] == {"absent": "there is no gone/x.py in the folder of checkouts"}
    assert [row["dispatcher"] for row in written["rows"] if row["planner"] == "made up"] == ["alltoall", "deepep"]


def test_without_any_checkout_it_says_how_to_get_them(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["peers", str(tmp_path)])
    with pytest.raises(SystemExit, match=r"python -m benchmarks\.peers\.checkouts DIR"):
        run.main()


def test_an_unknown_case_is_refused(tmp_path, monkeypatch):
    (tmp_path / "made-up").mkdir()
    (tmp_path / "made-up" / "planner.py").touch()
    monkeypatch.setattr(run, "PEERS", (made_up(eplb),))
    monkeypatch.setattr("sys.argv", ["peers", str(tmp_path), "--case", "gpt-oss-20b:7"])
    with pytest.raises(SystemExit, match=r"expected a case among .*, got gpt-oss-20b:7"):
        run.main()
