"""`python -m metacal` is the `metacal` command."""

from metacal.cli import main

if __name__ == "__main__":
    main()
