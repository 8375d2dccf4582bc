"""`python -m dflash`."""

from dflash.cli import main

if __name__ == "__main__":
    main()
