"""``python -m attncli``."""

from attncli.cli import main

# Processes that `--workers` starts import this module, too.
if __name__ == "__main__":
    main()
