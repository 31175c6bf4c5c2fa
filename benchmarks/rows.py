"""The rows of tables: kernels that update them, and tables that find them.

python benchmarks/rows.py kernels  the row kernels, compared with the copy bandwidth
python benchmarks/rows.py tables   growing tables: look-ups, inserts, expiry, snapshots
"""

from harness.suite import Suite

SUITE = Suite(about=__doc__, parts={"kernels": "row_parts.kernels", "tables": "row_parts.tables"})

if __name__ == "__main__":
    SUITE.main()
