"""Makes the contract and the reference importable."""

import os
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "kernels")]
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before PyTorch starts its threads
