"""``python -m runner`` is ``runner``."""

from runner.cli.main import main

if __name__ == "__main__":
    main()
