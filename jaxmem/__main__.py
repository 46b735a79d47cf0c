"""`python -m jaxmem`."""

from jaxmem.cli.main import main

if __name__ == "__main__":
    main()
