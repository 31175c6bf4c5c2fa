"""A server: time of requests, answers per second, and whether the answers are right.

load    `cowclip online serve` during syncs, with wrk
triton  an exported model in NVIDIA Triton
"""

from harness import Suite

PARTS = {"load": "serving_load:LOAD", "triton": "serving_triton:TRITON"}
SUITE = Suite(about=__doc__, script="serving.py", parts=PARTS)

if __name__ == "__main__":
    SUITE.main()
