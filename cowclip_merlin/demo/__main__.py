"""`python -m cowclip_merlin.demo` runs the main job end to end, as `make demo` does."""

from __future__ import annotations

import sys

from cowclip_merlin.demo.batch import main

if __name__ == "__main__":
    sys.exit(main())
