"""``python -m relight``: the command line, where the console script is not on PATH."""

from relight.cli.main import main

if __name__ == "__main__":
    main()
