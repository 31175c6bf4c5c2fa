"""One self-contained page from the results of experiments."""

from cowclip_merlin.experiments.report.page import write_report

__all__ = ["write_report"]
