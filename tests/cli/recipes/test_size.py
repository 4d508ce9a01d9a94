"""A recipe cannot make its reader large or slow."""

import subprocess
import sys

import pytest

from relibra.cli.recipes.frameworks.registry import Framework

_LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{inner}'] * 10)}]\n" for inner, name in zip("abcdefgh", "bcdefghi", strict=True)
)
LARGE = {
    "doubled.sh": "A=x; while true; do A=$A$A; done; python3 train.py --a $A",
    "array.sh": 'X=(x); while true; do X+=("${X[@]}"); done; python3 train.py ${X[@]}',
    "replaced.sh": "A=xxxxxxxxxx; for i in 1 2 3 4 5 6 7 8; do A=${A//x/$A}; done; python3 train.py --lr 1 $A",
    "counting.sh": "for ((;;)); do :; done; python3 train.py --lr 1",
    "loops.sh": "while true; do while true; do while true; do :; done; done; done; python3 train.py --lr 1",
    "deep.sh": "A=" + "$(" * 5000 + ")" * 5000 + "; python3 train.py --lr 1",
    "doubled.py": "def main():\n    a = 'x'\n    for i in range(99):\n        a += a\n    execute_train('--a 1 ' + a)",
    "tree.py": (
        "def main():\n    a = []\n    for i in range(99):\n        a = [a, a]\n    execute_train(f'--a 1 {a} {a == 1}')"
    ),
    "joined.py": (
        "def main():\n    a = 'x' * 99999\n    execute_train('--a 1 ' + a.join(['y'] * 99999) + a.replace('x', a))"
    ),
    "format.py": "def main():\n    execute_train('--a 1 ' + f'{1:999999999d}' + '%999999999d' % 1)",
    "laughs.yaml": _LAUGHS,
    "self.yaml": "a: &a [*a]\n",
}
_READ = """
import resource, sys
from pathlib import Path
from relibra.cli.recipes.frameworks.registry import Framework
from relibra.cli.recipes.read import read_recipe
from relibra.errors import InvalidInput
room = 400 << 20
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + room, used + room))
for name in sys.argv[2:]:
    try:
        read_recipe(Path(name), Framework(sys.argv[1]), {})
    except InvalidInput:
        pass
    print("read", Path(name).name)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits the memory of a process")
def test_a_recipe_cannot_exhaust_memory(tmp_path):
    for name, text in LARGE.items():
        (tmp_path / name).write_text(text)
    command = [sys.executable, "-c", _READ, Framework.SLIME, *(str(tmp_path / name) for name in LARGE)]
    said = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert said.stdout.split() == [word for name in LARGE for word in ("read", name)], said.stderr
