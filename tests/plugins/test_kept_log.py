import logging

import pytest

from relibra.plugins.kept_log import keep_log

MESSAGE = "relibra: a rank waits"
log = logging.getLogger("relibra.plugins.rollout_stream")


def log_as_a_process(monkeypatch: pytest.MonkeyPatch, level: int) -> None:
    """Have the root logger print to stderr, and nothing else."""
    monkeypatch.setattr(logging.root, "handlers", [logging.StreamHandler()])
    monkeypatch.setattr(logging.root, "level", level)
    logging.root.manager._clear_cache()  # type: ignore[attr-defined]  # as setLevel does


@pytest.mark.parametrize("level", [logging.WARNING, logging.ERROR])
def test_S9_a_warning_is_printed_once_whatever_level_the_root_logger_gets_afterwards(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], level: int
) -> None:
    log_as_a_process(monkeypatch, logging.WARNING)
    keep_log()
    keep_log()
    logging.root.setLevel(level)  # as a package does that vLLM's servers import
    logging.root.handlers[0].setLevel(level)
    log.warning(MESSAGE)
    log.info("nobody asked for this")
    printed = capsys.readouterr().err
    assert printed.count(MESSAGE) == 1
    assert "nobody asked" not in printed


def test_a_process_whose_root_logger_takes_information_gets_relibras_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log_as_a_process(monkeypatch, logging.INFO)
    keep_log()
    log.info(MESSAGE)
    assert capsys.readouterr().err.count(MESSAGE) == 1


def test_S9_a_warning_is_printed_where_another_object_stands_for_the_root_logger(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log_as_a_process(monkeypatch, logging.WARNING)
    monkeypatch.setattr(logging.root, "handlers", [])
    other = logging.RootLogger(logging.INFO)
    other.addHandler(logging.StreamHandler())
    monkeypatch.setattr(logging, "root", other)  # as in processes of AReaL
    keep_log()
    log.warning(MESSAGE)
    assert capsys.readouterr().err.count(MESSAGE) == 1
