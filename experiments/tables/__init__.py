"""Tables of the paper with our numbers: from results to cells, text and JSON files."""
