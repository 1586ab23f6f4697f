"""``python -m cohelix``."""

from cohelix.cli import main

main()
