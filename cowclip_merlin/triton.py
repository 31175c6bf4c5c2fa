"""Write a model repository for NVIDIA Triton: raw values in, click probabilities out."""

from __future__ import annotations

from cowclip_merlin.serving.triton.repository import RepositorySettings, export_repository

__all__ = ["RepositorySettings", "export_repository"]
