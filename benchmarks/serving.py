"""A server: time of requests, answers per second, and whether the answers are right.

load    `cowclip online serve` during syncs, with wrk
triton  an exported model in NVIDIA Triton
"""

from harness import Suite
from serving_load import LOAD
from serving_triton import TRITON

PARTS = {"load": LOAD, "triton": TRITON}
SUITE = Suite(about=__doc__, script="serving.py", parts=PARTS)

if __name__ == "__main__":
    SUITE.main()
