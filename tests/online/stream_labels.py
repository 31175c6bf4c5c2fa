"""A log of events with three labels, and with two."""

from dataclasses import replace

from cowclip_merlin.online.events.features import (
    CategoricalColumn,
    ContinuousColumn,
    LogFeatures,
)

FEATURES = LogFeatures(
    label="click",
    more_labels=("buy", "sec"),
    regression=("sec",),
    time="time",
    key="key",
    categorical=(CategoricalColumn(name="user"), CategoricalColumn(name="item")),
    continuous=(ContinuousColumn(name="price"),),
)
TWO = replace(FEATURES, more_labels=("buy",), regression=())
