"""A server: time of requests, answers per second, and whether the answers are right.

python benchmarks/serving.py load    `cowclip online serve` during syncs, with wrk
python benchmarks/serving.py triton  an exported model in NVIDIA Triton
"""

from harness.suite import Suite

SUITE = Suite(about=__doc__, parts={"load": "serving_parts.load", "triton": "serving_parts.triton"})

if __name__ == "__main__":
    SUITE.main()
