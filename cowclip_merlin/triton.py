"""Write a model repository for NVIDIA Triton: raw values in, click probabilities out."""

from __future__ import annotations

from cowclip_merlin.serving.triton.repository import export_repository
from cowclip_merlin.serving.triton.settings import RepositorySettings

__all__ = ["RepositorySettings", "export_repository"]
