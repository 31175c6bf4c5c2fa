"""What every implementation of the row kernels must do: inherit `Kernels` to test one.

A check takes a `Subject` and NumPy inputs and compares with `reference`. Gradients are small
multiples of 1/64: their sums are exact in float32 and they are exact in bfloat16, so a difference
is an error and no rounding.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cowclip_merlin import choices
from cowclip_merlin.kernels import NonFiniteGradient, RowSettings, load
from cowclip_merlin.kernels.cuda.source import SEGMENT

reference = load("reference")
ROW_CLIPS = choices.kernel_clips()
CLIPS = (*ROW_CLIPS, "global", "field", "adaptive_field")  # of `clip_rows`
RELATIVE, ABSOLUTE = 2e-5, 1e-6
EVERY = settings(max_examples=40, suppress_health_check=list(HealthCheck))
dims = st.sampled_from([1, 2, 3, 5, 7, 10, 16, 31, 64, 100, 128])
seeds = st.integers(0, 2**32 - 1)


def state(rng, u, d, scale=1e-2):
    w, m = rng.normal(0, scale, (u, d)), rng.normal(0, scale / 10, (u, d))
    return [x.astype(np.float32) for x in (w, m, rng.random((u, d)) * scale**2)]


def wide(arrays):
    return [x.astype(np.float64) for x in arrays]


@dataclass(frozen=True)
class Subject:
    """An implementation, and how arrays get to its device and back."""

    kernels: Any
    put: Any = np.array
    get: Any = np.asarray


@dataclass(frozen=True)
class Case:
    """A batch and the state of its rows."""

    ids: Any  # int32 or int64 [n]
    values: Any  # float32 [n, d]
    w: Any  # float32 [u, d]
    m: Any
    v: Any


def make_case(seed, n, d, vocabulary, dtype=np.int64, offset=0):
    """A case; every fourth gradient is zero, and so is the first row."""
    rng = np.random.default_rng(seed)
    ids = (rng.integers(0, vocabulary, n) + offset).astype(dtype)
    values = rng.integers(-128, 129, (n, d)).astype(np.float32) / 64
    values[::4] = 0
    u = len(np.unique(ids))
    w = rng.normal(0, 0.1, (u, d)).astype(np.float32)
    m = rng.normal(0, 0.1, (u, d)).astype(np.float32)
    v = rng.uniform(0.01, 0.1, (u, d)).astype(np.float32)
    w[:1] = 0
    return Case(ids, values, w, m, v)


IDS = [(np.int32, 0), (np.int32, 2**31 - 100), (np.int64, 0), (np.int64, 2**40), (np.int64, -7)]
"""Types of ids and their least: both widths, beyond 2^31 too."""


@st.composite
def cases(draw, lengths=dims, most=60):
    """Random cases, an empty batch too."""
    numbers = draw(st.tuples(seeds, st.integers(0, most), lengths, st.integers(1, 80)))
    return make_case(*numbers, *draw(st.sampled_from(IDS)))


def settings_of_rows(clips=CLIPS, parts=(1,)):
    """Strategy for `RowSettings`; the thresholds are such that some rows are clipped."""
    return st.builds(
        RowSettings,
        l2=st.sampled_from([0.0, 1e-4, 0.1]),
        clip=st.sampled_from(clips),
        r=st.sampled_from([0.1, 1.0, 10.0]),
        zeta=st.sampled_from([0.0, 1e-5, 0.1]),
        bound=st.sampled_from([0.5, 3.0, 25.0]),
        beta_1=st.sampled_from([0.9, 0.7, 0.0]),
        beta_2=st.sampled_from([0.999, 0.872, 0.5]),
        epsilon=st.sampled_from([1e-7, 1e-8]),
        micro_batches=st.sampled_from(parts),
    )


def is_calm(rows):
    """Whether rounding stays small over many steps of these `RowSettings`.

    With a short memory and little momentum, L2 makes weights near 0 jump from side to side, and any
    difference grows from step to step.
    """
    return rows.l2 == 0 or rows.beta_2 > 0.5 or rows.beta_1 == 0.9


def close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=RELATIVE, atol=ABSOLUTE)


def double(*arrays):
    return [np.array(x, np.float64) for x in arrays]


def bfloat16_bits(values):
    """The upper halves of float32 numbers that lose nothing by it."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    assert not (bits & 0xFFFF).any()
    return (bits >> 16).astype(np.uint16)


def check_group(subject, ids):
    expected, actual = reference.group_rows(ids), subject.kernels.group_rows(subject.put(ids))
    for want, got in zip(expected, actual):
        np.testing.assert_array_equal(subject.get(got), want)
    assert subject.get(actual.ids).dtype == ids.dtype


def check_unique(subject, case, values=None):
    """Sums are exact here; values: the gradients in another type."""
    expected = reference.unique_rows(case.ids, case.values)
    values = case.values if values is None else values
    actual = subject.kernels.unique_rows(subject.put(case.ids), subject.put(values))
    for want, got in zip(expected, actual):
        np.testing.assert_array_equal(subject.get(got), want)
    assert subject.get(actual.g).dtype == np.float32


def check_clip(subject, case, settings, num_fields=3):
    rows = reference.unique_rows(case.ids, case.values)
    field = np.arange(len(rows.ids)) * 7 % num_fields
    for named in ({}, {"field": field, "num_fields": num_fields}):
        expected = reference.clip_rows(rows.g, case.w, rows.cnt, settings, **named)
        put = {k: subject.put(x) if k == "field" else x for k, x in named.items()}
        g = subject.put(rows.g.astype(np.float32))
        before = subject.get(g).copy()
        actual = subject.kernels.clip_rows(
            g, subject.put(case.w), subject.put(rows.cnt), settings, **put
        )
        for want, got in zip(expected, actual):
            close(subject.get(got), want)
        np.testing.assert_array_equal(subject.get(g), before)


def alphas_of(steps, settings, lr=1e-3):
    t = np.arange(1, steps + 1)
    return lr * np.sqrt(1 - settings.beta_2**t) / (1 - settings.beta_1**t)


def check_replay(subject, case, gaps, to, settings):
    """Gaps: steps that each row has missed, [u]; some may be negative (a row is ahead).

    All rows, and some of them, twice or three times each, with the steps seen as floats.
    """
    u, rng = len(case.w), np.random.default_rng(to)
    some = rng.permutation(np.repeat(rng.permutation(u)[: (u + 1) // 2], rng.integers(1, 4)))
    last, own = np.maximum(to - gaps, 0).astype(np.int32), epsilons_of(max(to, 1), settings)
    check_replay_of(subject, case, None, last, to, settings)
    check_replay_of(subject, case, None, last, to, settings, epsilons=own)
    check_replay_of(subject, case, some, last, to, settings)
    check_replay_of(subject, case, some.astype(np.int32), last.astype(np.float32), to, settings)


def epsilons_of(steps, settings):
    """Where PyTorch puts epsilon, in terms of rates with both bias corrections."""
    return settings.epsilon * np.sqrt(1 - settings.beta_2 ** np.arange(1, steps + 1))


def check_replay_of(subject, case, rows, last, to, settings, *, epsilons=None):
    alphas, expected, want_last = (
        alphas_of(max(to, 1), settings),
        double(case.w, case.m, case.v),
        last.copy(),
    )
    alphas[3::7] = -1  # refused steps
    how = {"rows": rows, "epsilons": epsilons}
    want = reference.replay_rows(*expected, want_last, alphas, to, settings, **how)
    actual = [subject.put(x) for x in (case.w, case.m, case.v, last)]
    how = {name: x if x is None else subject.put(x) for name, x in how.items()}
    alphas = subject.put(alphas.astype(np.float32))
    assert subject.kernels.replay_rows(*actual, alphas, to, settings, **how) == want
    for wanted, got in zip(expected, actual):
        np.testing.assert_allclose(subject.get(got), wanted, rtol=2e-4, atol=1e-6)
    np.testing.assert_array_equal(subject.get(actual[3]), want_last)


def check_update(subject, case, settings, values=None, alpha=1e-2):
    expected = double(case.w, case.m, case.v)
    want = reference.update_rows(
        *expected, reference.group_rows(case.ids), case.values, alpha, settings
    )
    values = case.values if values is None else values
    actual = [subject.put(x) for x in (case.w, case.m, case.v)]
    groups = subject.kernels.group_rows(subject.put(case.ids))
    factor = subject.kernels.update_rows(*actual, groups, subject.put(values), alpha, settings)
    close(subject.get(factor), want)
    for wanted, got in zip(expected, actual):
        close(subject.get(got), wanted)


def check_adagrad(subject, case, settings, rowwise, rate=0.1):
    """L2, clip and Adagrad, with rows anywhere in a larger table."""
    rows = reference.unique_rows(case.ids, case.values)
    starts, u = reference.group_rows(case.ids).starts, len(case.w)
    where = np.random.default_rng(u).permutation(2 * u + 1)[:u]
    w = np.full((2 * u + 1, case.w.shape[1]), 7, np.float32)
    sums = np.full_like(w[:, :1] if rowwise else w, 7)
    w[where], sums[where] = case.w, case.v[:, : sums.shape[1]]
    expected, actual = double(w, sums), [subject.put(x) for x in (w, sums)]
    g = subject.put(rows.g.astype(np.float32))
    want = reference.adagrad_rows(*expected, where, rows.g, starts, rate, settings)
    batch = subject.put(where), g, subject.put(starts)
    factor = subject.kernels.adagrad_rows(*actual, *batch, rate, settings)
    close(subject.get(factor), want)
    for wanted, got in zip(expected, actual):
        close(subject.get(got), wanted)


def check_bad_gradient(subject, case, bad, settings):
    """The error names the first distinct id that is not finite; nothing is written."""
    values = case.values.copy()
    values[len(values) // 2, -1] = bad
    index = int(np.searchsorted(np.unique(case.ids), case.ids[len(values) // 2]))
    state = [subject.put(x) for x in (case.w, case.m, case.v)]
    groups = subject.kernels.group_rows(subject.put(case.ids))
    with pytest.raises(NonFiniteGradient) as caught:
        subject.kernels.update_rows(*state, groups, subject.put(values), 0.1, settings)
    assert caught.value.index == index
    for before, after in zip((case.w, case.m, case.v), state):
        np.testing.assert_array_equal(subject.get(after), before)


def check_same_bits(one, other, case, settings, gaps):
    """Sum, update and replay of two subjects (or one, twice): every bit is the same."""
    results = []
    rough = case.values * np.float32(1.1)  # now the order of summation shows
    for subject in (one, other):
        state = [subject.put(x) for x in (case.w, case.m, case.v)]
        groups = subject.kernels.group_rows(subject.put(case.ids))
        sums = subject.kernels.unique_rows(subject.put(case.ids), subject.put(rough)).g
        factor = subject.kernels.update_rows(*state, groups, subject.put(rough), 0.01, settings)
        last = subject.put((gaps.max(initial=0) - gaps).astype(np.int32))
        steps = int(gaps.max(initial=0))
        alphas = subject.put(alphas_of(max(steps, 1), settings).astype(np.float32))
        subject.kernels.replay_rows(*state, last, alphas, steps, settings)
        for slots in (case.v[:, :1], case.v):
            w, slots = subject.put(case.w), subject.put(np.ascontiguousarray(slots))
            batch = subject.put(np.arange(len(case.w))), sums, groups.starts
            subject.kernels.adagrad_rows(w, slots, *batch, 0.1, settings)
            state += [w, slots]
        results.append([subject.get(x) for x in (sums, factor, *state)])
    for a, b in zip(*results):
        np.testing.assert_array_equal(a.view(np.uint32), b.view(np.uint32))


class Kernels:
    """Inherit it as `class TestX(Kernels)`, with a fixture `subject`.

    `lengths` of rows and `most` entries of a batch are what it is tried with. `parts` are the
    micro-batches that it knows, and `absent` says whether its replays clip absent rows.
    """

    lengths, most, parts, absent = dims, 60, (1,), False

    def half(self, values):
        """Gradients in bfloat16, as the kernels take them."""
        return bfloat16_bits(values)

    def case(self, data):
        return data.draw(cases(self.lengths, self.most))

    def rows(self, data, clips=ROW_CLIPS):
        return data.draw(settings_of_rows(clips, self.parts))

    def replays(self):
        drawn = settings_of_rows(ROW_CLIPS, self.parts).filter(is_calm)
        return drawn if self.absent else drawn.filter(lambda rows: not rows.clips_absent_rows)

    @EVERY
    @given(st.data())
    def test_groups_and_sums(self, subject, data):
        case = self.case(data)
        check_group(subject, case.ids)
        check_unique(subject, case)
        check_unique(subject, case, values=self.half(case.values))

    @EVERY
    @given(st.data())
    def test_clip(self, subject, data):
        check_clip(subject, self.case(data), self.rows(data, CLIPS))

    @EVERY
    @given(st.data())
    def test_update(self, subject, data):
        case, rows = self.case(data), self.rows(data)
        check_update(subject, case, rows)
        check_update(subject, case, rows, values=self.half(case.values))

    @EVERY
    @given(st.data())
    def test_adagrad(self, subject, data):
        case, rows = self.case(data), data.draw(settings_of_rows(ROW_CLIPS))
        check_adagrad(subject, case, rows, data.draw(st.booleans()))

    @EVERY
    @given(st.data(), st.integers(0, 60), seeds)
    def test_replay(self, subject, data, to, seed):
        case = self.case(data)
        gaps = np.random.default_rng(seed).integers(-3, to + 1, len(case.w))
        check_replay(subject, case, np.minimum(gaps, to), to, data.draw(self.replays()))

    @pytest.mark.parametrize("gap", [0, 1, 1000])
    def test_replay_of_no_step_and_of_many(self, subject, gap):
        case = make_case(8, 20, 10, 10)
        check_replay(subject, case, np.full(len(case.w), gap), gap + 5, RowSettings(l2=1e-4))

    @pytest.mark.parametrize("n", [SEGMENT, SEGMENT + 1, 2 * SEGMENT, 5 * SEGMENT + 3])
    def test_frequent_ids_are_summed_in_pieces(self, subject, n):
        check_unique(subject, make_case(3, n, 10, 1))
        mixed = make_case(4, 4 * n, 10, 5)
        ids = np.where(np.arange(4 * n) % 2, mixed.ids, 1000 + np.arange(4 * n))  # and rare ones
        check_unique(subject, replace(mixed, ids=ids))
        check_update(subject, mixed, RowSettings(l2=1e-4))

    def test_the_same_bits_twice(self, subject):
        case = make_case(2, 3 * SEGMENT, 10, 3)
        check_same_bits(subject, subject, case, RowSettings(), np.array([0, 7, 3]))

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    @pytest.mark.parametrize("vocabulary", [1, 40, 5000])
    def test_a_bad_gradient_changes_nothing(self, subject, bad, vocabulary):
        check_bad_gradient(subject, make_case(6, 2 * SEGMENT, 10, vocabulary), bad, RowSettings())

    def test_a_bad_gradient_of_a_frequent_id_among_rare_ones_is_placed(self, subject):
        case = make_case(6, 2 * SEGMENT, 10, 1)
        ids = np.where(np.arange(2 * SEGMENT) < 10, np.arange(2 * SEGMENT), 500)
        state = make_case(6, 11, 10, 10**6)
        mixed = replace(case, ids=ids, w=state.w, m=state.m, v=state.v)
        check_bad_gradient(subject, mixed, np.nan, RowSettings())

    def test_zero_gradients_and_zero_rows(self, subject):
        """Also where the sums of Adagrad and epsilon are 0: a step must not divide 0 by 0."""
        case = make_case(7, 20, 10, 5)
        case.values[:], case.w[:], case.v[:] = 0, 0, 0
        for clip in CLIPS:
            check_clip(subject, case, RowSettings(clip=clip, zeta=0.0))
        check_update(subject, case, RowSettings(zeta=0.0))
        for rowwise in (True, False):
            check_adagrad(subject, case, RowSettings(epsilon=0.0), rowwise)
