"""Entry point of `python -m metacal`, which runs the `metacal` command."""

from metacal.cli import main

if __name__ == "__main__":
    main()
