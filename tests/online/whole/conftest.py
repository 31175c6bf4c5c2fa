"""Makes `watched`, which lies beside the tests, and the folder of benchmarks importable."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[2] / "benchmarks")]
