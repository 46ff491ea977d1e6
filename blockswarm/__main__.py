"""``python -m blockswarm``: the same program as the ``blockswarm`` command."""

from blockswarm.cli.entry import main

if __name__ == "__main__":
    main()
