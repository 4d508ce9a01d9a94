"""`python -m benchmarks.gpu`: see `check`."""

import sys

from benchmarks.gpu.check import main

if __name__ == "__main__":
    sys.exit(main())
