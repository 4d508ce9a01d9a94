"""`python -m benchmarks.peers DIR`: see `run`."""

from benchmarks.peers.run import main

if __name__ == "__main__":
    main()
