"""Make the paper's tables with our numbers: cells, text and JSON files."""
