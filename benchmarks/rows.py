"""The rows of tables: kernels that update them, and tables that find them.

kernels  the row kernels, compared with the copy bandwidth
tables   growing tables: look-ups, inserts, expiry, snapshots
"""

from harness import Suite

PARTS = {"kernels": "row_kernels:KERNELS", "tables": "row_tables:TABLES"}
SUITE = Suite(about=__doc__, script="rows.py", parts=PARTS)

if __name__ == "__main__":
    SUITE.main()
