"""Launchers are read from their syntax tree. Nothing of them is executed."""

from pathlib import Path

import pytest

from relibra.cli.recipes.python.launcher import read_launcher
from relibra.cli.recipes.shell.unknown import shown

EXPRESSIONS = {
    "'--a ' + '1'": ("--a", "1"),
    'f\'--a {1 + 2} --b {"x" if 3 > 2 else "y"}\'': ("--a", "3", "--b", "x"),
    "' '.join(['--a', *[str(n) for n in range(3) if n != 1]])": ("--a", "0", "2"),
    "f\"--a {dict(x=1).get('x')} --b {[5, 6][-1]} --c {'abc'[1:]}\"": ("--a", "1", "--b", "6", "--c", "bc"),
    'f\'--a {Path("/m") / "n"} --b {7 / 2} --c {1e-6:.0e}\'': ("--a", "/m/n", "--b", "3.5", "--c", "{1e-06:.0e}"),
    'f\'--a {os.environ.get("NONE", "8")} --b {unheard_of()}\'': ("--a", "8", "--b", "unheard_of()"),
    "'--a ' + (lambda x, y=2: f'{x}{y}')(1)": ("--a", "12"),
}


def train(body: str, given: dict[str, str] | None = None) -> list[str]:
    text = "import os\nfrom pathlib import Path\ndef main():\n" + "".join(f"    {line}\n" for line in body.splitlines())
    return [shown(each) for each in read_launcher(Path("launcher.py"), text, given or {})[0]]


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_texts_are_put_together(expression):
    assert train(f"execute_train(train_args={expression})") == list(EXPRESSIONS[expression])


def test_statements_take_effect():
    body = """
args = ""
for name, value in (("a", 1), ("b", 2), ("c", 3)):
    if value == 2:
        continue
    args += f"--{name} {value} "
match value:
    case 1 | 2:
        args += "--small"
    case n if n > 2:
        args += f"--large {n}"
if unheard_of():
    args += "--never"
try:
    args += " --tried"
except ValueError:
    args += " --not-tried"
execute_train(train_args=args)
"""
    assert train(body) == ["--a", "1", "--c", "3", "--large", "3", "--tried"]


@pytest.mark.parametrize(
    "body",
    [
        "if unheard_of():\n    a = 2",
        "a = 2 if unheard_of() else 1",
        "a = unheard_of() or 2",
        "a = [n for n in (1, 2) if unheard_of()]",
        "match unheard_of():\n    case 1:\n        a = 2",
    ],
)
def test_a_branch_that_depends_on_the_outside_is_listed(body):
    text = f"{body}\nexecute_train(train_args='--a 1')"
    (stop,) = read_launcher(Path("launcher.py"), text, {})[1]
    assert stop.startswith("line 1: 'unheard_of()' is not known; read as ")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("args.extend(unheard_of())", "--a unheard_of()"),
        ("args.insert(0, '--b')", "--b --a"),
        ("args.insert(0, unheard_of())", "unheard_of() --a"),
        ("add(args)", "--a --c 1"),
        ("share()", "--a --d"),
    ],
)
def test_what_is_added_to_a_list_is_kept(body, words):
    text = f"""
args = ["--a"]
def add(args):
    args += ["--c", "1"]
def share():
    global args
    args = ["--a", "--d"]
{body}
execute_train(train_args=" ".join(args))
"""
    assert " ".join(shown(each) for each in read_launcher(Path("launcher.py"), text, {})[0]) == words


def test_the_environment_is_what_was_given(monkeypatch):
    monkeypatch.setenv("NODES", "64")
    body = "execute_train(train_args=f\"--nodes {os.environ.get('NODES', '1')}\")"
    assert train(body) == ["--nodes", "1"]
    assert train(body, {"NODES": "8"}) == ["--nodes", "8"]


def test_a_launcher_that_would_stop_says_where():
    text = """
def sizes(nodes):
    if nodes == 1:
        raise NotImplementedError("needs more nodes")
    return f"--nodes {nodes} "
def main(nodes: int = 1):
    execute_train(train_args=sizes(nodes) + "--a 1")
"""
    words, stops = read_launcher(Path("launcher.py"), text, {})
    assert words[1:] == ("--a", "1")
    assert stops == ("line 4: the launcher would stop here: NotImplementedError('needs more nodes')",)
    assert read_launcher(Path("launcher.py"), text, {"nodes": "2"}) == (("--nodes", "2", "--a", "1"), ())


HARMFUL = """
import os, shutil, subprocess
open({target!r}, "w").write("x")
os.system("touch {target}")
subprocess.run(["touch", {target!r}])
shutil.rmtree({folder!r})
__import__("os").remove({kept!r})
eval("open({target!r}, 'w')")
def main(n=10**10):
    big = "a" * 10**12
    huge = 9 ** 9 ** 9
    many = [0] * 10**12
    execute_train(train_args="--a 1 " + big + str(huge))
"""


def test_nothing_of_a_launcher_is_executed(tmp_path):
    kept, target = tmp_path / "kept", tmp_path / "target"
    kept.write_text("here")
    text = HARMFUL.format(target=str(target), folder=str(tmp_path), kept=str(kept))
    assert read_launcher(tmp_path / "launcher.py", text, {})[0][:2] == ("--a", "1")
    assert [each.name for each in tmp_path.iterdir()] == ["kept"]
