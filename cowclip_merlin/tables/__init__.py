"""Embedding tables: which rows belong to which field, and tables that grow."""

from cowclip_merlin.tables.layout import TableLayout

__all__ = ["TableLayout"]
