import sys
from dataclasses import replace

import pytest

from benchmarks import pages
from benchmarks.pages import PARTS, Inputs, Part, choose
from benchmarks.peers.checkouts import CHECKOUTS


@pytest.fixture
def inputs(tmp_path):
    for name in ("gpt-oss-20b_mmlu.npz", "deepseek-v2-lite_esft.npz", "deepseek-v3_counts_dev.npz"):
        (tmp_path / name).touch()
    for folder in (next(iter(CHECKOUTS)), "scripts/routing_output"):
        (tmp_path / folder).mkdir(parents=True)
    return Inputs(traces=tmp_path, num_cores=2, load=0.1, peers=tmp_path, olmoe=tmp_path)


def test_with_all_inputs_only_the_shaped_network_is_left_out(inputs):
    parts, left_out = choose(inputs)
    assert list(left_out) == ["the clock, on a slow network"]
    assert len(parts) == len(PARTS) - 1
    assert parts[0].name.startswith("the clock")


@pytest.mark.parametrize(
    ("changes", "left_out", "why"),
    [
        ({"load": 3.0}, ["the clock, on drawn routing", "the clock, on recorded routing"], "got a load of 3.0"),
        (
            {"num_cores": 1},
            ["the clock, on drawn routing", "the clock, on recorded routing"],
            "expected two cores, got 1",
        ),
        ({"peers": None}, ["the peers"], "PEERS=DIR"),
        ({"olmoe": None}, ["drift of OLMoE"], "OLMOE=DIR"),
    ],
)
def test_parts_without_their_input_are_left_out_by_name(inputs, changes, left_out, why):
    parts, reasons = choose(replace(inputs, **changes))
    assert set(reasons) == {*left_out, "the clock, on a slow network"}
    assert all(why in reasons[name] for name in left_out)
    assert not {part.name for part in parts} & set(left_out)


def test_a_missing_trace_is_named(inputs):
    (inputs.traces / "deepseek-v3_counts_dev.npz").unlink()
    _, reasons = choose(inputs)
    assert "expected deepseek-v3_counts_dev.npz in" in reasons["the evaluation"]
    assert "the peers" in reasons
    assert "the twin" not in reasons


def test_a_folder_that_is_not_there_is_refused_before_anything_is_computed(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(sys, "argv", ["pages", "--peers", str(tmp_path / "typo")])
    with pytest.raises(SystemExit):
        pages.main()
    said = capfd.readouterr()
    assert f"--peers: expected a folder, got {tmp_path / 'typo'}" in said.err
    assert not said.out


def test_parts_run_in_order_with_their_folders_and_the_end_names_both(tmp_path, monkeypatch, capfd):
    parts = [
        Part(name="first", commands=[("-c", "print('one of', '{peers}')"), ("-c", "print('two')")]),
        Part(name="second", commands=[("-c", "print('three')")]),
        Part(name="third", commands=[("-c", "print('never')")], lacks=lambda inputs: "expected a moon"),
    ]
    monkeypatch.setattr(pages, "PARTS", parts)
    monkeypatch.setattr(pages, "_SHOW", ())
    monkeypatch.setattr(sys, "argv", ["pages", "--peers", str(tmp_path)])
    pages.main()
    assert capfd.readouterr().out.splitlines() == [
        "LEFT OUT: third: expected a moon",
        "first ...",
        f"one of {tmp_path}",
        "two",
        "second ...",
        "three",
        "computed again: first, second; left out: third",
    ]
