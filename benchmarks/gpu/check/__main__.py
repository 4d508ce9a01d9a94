"""`python -m benchmarks.gpu.check`: see `run`."""

import sys

from benchmarks.gpu.check.run import main

if __name__ == "__main__":
    sys.exit(main())
