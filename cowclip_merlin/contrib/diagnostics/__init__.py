"""Probes of the clip during a training: measure, write, draw. `cc.diagnostics` has their names."""
