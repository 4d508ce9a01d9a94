"""`python -m benchmarks.gpu`: see `measure`."""

import sys

from benchmarks.gpu.measure import main

if __name__ == "__main__":
    sys.exit(main())
