"""Makes `markdown_pages`, which lies beside the tests, and `docs/site` importable."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "docs/site")]
