"""Embedding tables, without TensorFlow: which rows belong to which field."""

from cowclip_merlin.tables.layout import TableLayout

__all__ = ["TableLayout"]
