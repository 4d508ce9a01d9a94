import sys

import pytest

from benchmarks import host_layer


def test_turns_that_all_warm_up_are_refused(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["host_layer", "--turns", "10"])
    with pytest.raises(SystemExit):
        host_layer.main()
    assert "--turns: expected more than the 10 that warm up, got 10" in capsys.readouterr().err
