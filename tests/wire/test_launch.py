"""What a process says of the launch that it belongs to."""

import os
import re
import subprocess
import sys

import pytest

from relibra.wire.launch import process_name, this_launch


def test_a_token_comes_from_the_argument_or_the_environment_or_names_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("RELIBRA_ATTEMPT", raising=False)
    assert this_launch().token == this_launch().process == process_name()
    monkeypatch.setenv("RELIBRA_ATTEMPT", "env")
    assert this_launch().token == "env"
    assert this_launch("argument").token == "argument"


def test_the_owner_is_this_process_on_this_host() -> None:
    assert re.fullmatch(rf"\S+:{os.getpid()}", this_launch().owner)


def test_every_process_has_a_name_of_its_own() -> None:
    code = "from relibra.wire.launch import process_name; print(process_name())"
    names = {subprocess.check_output([sys.executable, "-c", code], text=True).strip() for _ in range(2)}
    assert len({*names, process_name()}) == 3
