"""`python -m allocator.cli`."""

from allocator.cli import main

if __name__ == "__main__":
    main()
