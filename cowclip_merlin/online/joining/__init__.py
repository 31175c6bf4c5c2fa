"""Join impressions and clicks into training examples.

What the join gives, whatever the order in which the two logs arrive:

- The *event time* of a message is its own time. If newer messages of its log came before it by more
  than `lateness`, it is the newest of them minus `lateness`.
- Of the impressions of one key, the first one counts. Those that follow within
  `window + late + lateness` of an impression that counts are repeats. They change nothing.
- A click belongs to the impression of its key whose time t satisfies
  `t - lateness <= click <= t + window + late`. There is one such impression at most.
- An impression with a click until `t + window` gives one positive example.
- Any other impression gives one negative example if a hash of its key says so, with probability
  `negatives`. If it has a click until `t + window + late`, it also gives a positive example with
  `"late": 1`.
- Further clicks on the same impression are repeats. A click without an impression is counted.

A positive example is written when its click is read, a negative one when the window is over: when
both logs have come to a time after it. A log that is silent for `idle` seconds is not waited for.
A click that comes too late because of that counts as a late one.
"""
