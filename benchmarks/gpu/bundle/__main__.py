"""`python -m benchmarks.gpu.bundle`: see `build`."""

import sys

from benchmarks.gpu.bundle.build import main

if __name__ == "__main__":
    sys.exit(main())
