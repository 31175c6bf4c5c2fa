"""Run the paper's tables and figures, each described by a YAML file."""
