"""`python -m benchmarks.wall_clock`: see `measure`."""

from benchmarks.wall_clock.measure import main

if __name__ == "__main__":
    main()
