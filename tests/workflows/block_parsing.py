"""Parses one block, as the reader of text files does for each."""

import numpy as np


def parse_block(parser, block):
    """The table, the position of each row in the block, and the bad lines."""
    table = parser.parse_undamaged(block)
    if table is None:
        return parser.parse_good_lines(block, None)
    return table, np.arange(table.num_rows), []
