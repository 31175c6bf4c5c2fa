"""`python -m cowclip_merlin` is the command `cowclip`."""

from __future__ import annotations

import sys

from cowclip_merlin.cli import main

if __name__ == "__main__":
    sys.exit(main())
