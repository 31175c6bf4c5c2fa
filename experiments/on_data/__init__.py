"""Experiments on prepared data: plans of runs, trainings, their tables and figures."""
