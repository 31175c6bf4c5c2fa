"""One training run of a plan, and the hash that names it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from cowclip_merlin.experiments.planning.data_variant import DataVariant
from cowclip_merlin.experiments.results.result import Result
from cowclip_merlin.training import RunSettings


@dataclass(frozen=True, kw_only=True, eq=False)
class PlannedRun:
    """One training run of a plan.

    Attributes:
        label: label of its line.
        multiplier: of the base batch, as the line gives it.
        settings: of the training.
        variant: of the data.
    """

    label: str
    multiplier: int | str
    settings: RunSettings
    variant: DataVariant

    def config_hash(self, fingerprint: str) -> str:
        """Equal for runs that must come out equal; `fingerprint` is that of the given data.

        Settings at their defaults are left out. So an option that is added later does not change
        the names of earlier runs.
        """
        given = self.settings.as_dict()
        usual = RunSettings(model="deepfm", batch_size=1).as_dict()
        changed = {k: v for k, v in given.items() if v != usual[k] or k in ("model", "batch_size")}
        whole = json.dumps([changed, asdict(self.variant), fingerprint], sort_keys=True)
        return hashlib.sha256(whole.encode()).hexdigest()[:12]

    def run_id(self, fingerprint: str) -> str:
        """A readable name for the run's folder."""
        s = self.settings
        parts = (s.model, s.rule, s.effective_clip, f"b{s.batch_size}", f"s{s.seed}")
        return "-".join((*parts, self.config_hash(fingerprint)))


RunResults = Mapping[PlannedRun, Result]
"""The results that exist, by run."""
