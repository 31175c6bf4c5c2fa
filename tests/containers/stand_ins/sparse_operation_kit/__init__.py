"""A stand-in for HugeCTR's Sparse Operation Kit, with the lines that the original prints.

HugeCTR v4.3.1, sparse_operation_kit/sparse_operation_kit/__init__.py, lines 43 and 128.
"""

print("[SOK INFO] Import /usr/local/lib/libsparse_operation_kit.so")


def init(comm_tool="horovod", use_legacy_optimizer=True):
    print("[SOK INFO] Initialize finished, communication tool: " + comm_tool)
