"""`python -m relibra.cli` is the `relibra` command."""

from relibra.cli import main

if __name__ == "__main__":
    main()
