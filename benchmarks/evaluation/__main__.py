"""`python -m benchmarks.evaluation`: see `parts`."""

from benchmarks.evaluation.parts import main

if __name__ == "__main__":
    main()
