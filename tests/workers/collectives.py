"""In a worker: calls every exchange on random tensors, and compares the results with NumPy.

Every worker draws the tensors of all workers from the same seed, so it knows what must come.
"""

import json
from pathlib import Path

import numpy as np

from cowclip_merlin import compat
from cowclip_merlin.errors import InputError
from cowclip_merlin.workers import agreement, collectives, join

tf = compat.tensorflow()
ROUNDS = 10
CHECKS = {}


def check(function):
    """Run this function in every worker, and write down its error."""
    CHECKS[function.__name__] = function
    return function


def random_bits(rng, shape):
    """Numbers of which half are denormal as floats, as small integers are."""
    small = rng.integers(0, 2, shape).astype(bool)
    large = rng.integers(-(2**31), 2**31, shape)
    return np.where(small, rng.integers(-5, 2**20, shape), large).astype(np.int32)


def same_bits(found, expected):
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.dtype == expected.dtype and found.shape == expected.shape, (found, expected)
    assert found.tobytes() == expected.tobytes(), (found, expected)


def in_a_graph(function, *signature):
    return tf.function(function, input_signature=[tf.TensorSpec(*each) for each in signature])


@check
def sums(group, rng):
    for shape in ([1], [7], [3, 5], [1000]):
        run = in_a_graph(lambda x: collectives.sum_over(group, x, "a sum"), (shape, tf.float32))
        for _ in range(ROUNDS):
            every = rng.normal(size=[group.size, *shape]).astype(np.float32)
            found = run(tf.constant(every[group.rank])).numpy()
            np.testing.assert_allclose(found, every.sum(0, dtype=np.float64), rtol=1e-5, atol=1e-6)
            for other in agreement.arrays_of_all(group, found.astype(np.float64).reshape(-1)):
                same_bits(other, found.astype(np.float64).reshape(-1))


@check
def gathered(group, rng):
    for dtype in (tf.int32, tf.float32):
        run = in_a_graph(lambda x: collectives.gather(group, x, "counts"), ([4], dtype))
        for _ in range(ROUNDS):
            every = random_bits(rng, [group.size, 4]).view(dtype.as_numpy_dtype)
            same_bits(run(tf.constant(every[group.rank])), every.reshape(-1))


def rows_of(group, rng, width, dtype):
    most = rng.choice([0, 1, 16, 17, 40, 1000])
    counts = rng.integers(0, most + 1, group.size).astype(np.int32)
    return counts, [random_bits(rng, [n, width]).view(dtype) for n in counts]


@check
def gathered_rows(group, rng):
    for width, dtype in ((1, tf.float32), (3, tf.int32), (13, tf.float32)):
        run = in_a_graph(
            lambda x, n: collectives.gather_rows(group, x, n, "rows"),
            ([None, width], dtype),
            ([group.size], tf.int32),
        )
        for _ in range(ROUNDS):
            counts, every = rows_of(group, rng, width, dtype.as_numpy_dtype)
            same_bits(run(tf.constant(every[group.rank]), counts), np.concatenate(every))


@check
def exchanged(group, rng):
    @tf.function(input_signature=[tf.TensorSpec([group.size, None, 3], tf.float32)])
    def run(x):
        size, step = collectives.padded_size(tf.shape(x)[1])
        padded = tf.pad(x, [[0, 0], [0, size - tf.shape(x)[1]], [0, 0]])
        return collectives.all_to_all(group, padded, step, "parts")[:, : tf.shape(x)[1]]

    for _ in range(ROUNDS):
        shape = [group.size, group.size, rng.integers(0, 90), 3]
        every = random_bits(rng, shape).view(np.float32)
        same_bits(run(tf.constant(every[group.rank])), every[:, group.rank])


@check
def in_a_loop(group, rng):
    """Several steps in one graph, as `make_train_function` makes them."""
    steps = 200

    @tf.function
    def run(first):
        total = tf.zeros([2])
        for i in tf.range(steps):
            tf.autograph.experimental.set_loop_options(parallel_iterations=1)
            own = tf.cast(first + i, tf.float32) * tf.constant([1.0, 2.0])
            every = collectives.gather(group, own, "numbers in a loop")
            total += collectives.sum_over(group, own, "sums in a loop") - every[:2] - every[-2:]
        return total

    found = run(tf.constant(group.rank))
    own = np.arange(group.size)[:, np.newaxis] + np.arange(steps)
    same_bits(found, (own.sum() - own[0].sum() - own[-1].sum()) * np.float32([1, 2]))


@check
def arrays(group, rng):
    for _ in range(ROUNDS):
        counts = rng.integers(0, rng.choice([1, 5, 3000]), group.size)
        for dtype in (np.float64, np.int64):
            every = [random_bits(rng, [2 * n]).view(dtype) for n in counts]
            for found, expected in zip(
                agreement.arrays_of_all(group, every[group.rank]), every, strict=True
            ):
                same_bits(found, expected)


@check
def texts(group, rng):
    for own in ("", "a", "ärger \N{SNOWMAN} \U0001f9ea\n" * 50):
        every = [own * rank for rank in range(group.size)]
        assert agreement.texts_of_all(group, every[group.rank]) == every
    numbers = [0.1 + rank for rank in range(group.size)]
    assert agreement.numbers_of_all(group, numbers[group.rank]) == numbers
    agreement.wait_for_all(group)


def error_of(function):
    try:
        function()
    except Exception as error:
        return error
    return None


@check
def differences_of_facts(group, rng):
    alike = {"batch": 8, "rates": [0.1, 1e-9], "data": "abc", "none": None}
    agreement.check_alike(group, alike)
    last = group.size - 1
    for name, value in (("batch", 9), ("rates", [0.1, 2e-9]), ("data", "äbc"), ("none", 0)):
        own = alike | ({name: value} if group.rank == last else {})
        error = error_of(lambda own=own: agreement.check_alike(group, own))
        assert isinstance(error, InputError) and "\n" not in str(error)
        named = f"worker {last} ({group.addresses[last]}) has {name} {value}, worker 0 "
        assert named in str(error) and f"has {alike[name]};" in str(error)
    agreement.check_alike(group, alike)


@check
def errors_of_one(group, rng):
    with agreement.raising_together(group):
        pass
    last = group.size - 1
    for made in (InputError("x.txt: no such file; check"), KeyError("y"), OSError(28, "full")):

        def fail(made=made):
            with agreement.raising_together(group):
                if group.rank == last:
                    raise made

        error = error_of(fail)
        if group.rank == last:
            assert error is made
        else:
            assert isinstance(error, InputError) and str(made) in str(error)
            assert str(error).startswith(f"worker {last} ({group.addresses[last]}): ")
            assert ("InputError" in str(error)) is False
    agreement.wait_for_all(group)  # none is ahead of the others


@check
def refusal_of_one(group, rng):
    with agreement.refusing_together(group):
        pass
    last, made = group.size - 1, InputError("x.txt: damaged; check")

    def refuse():
        with agreement.refusing_together(group):
            if group.rank == last:
                raise made

    error = error_of(refuse)
    assert isinstance(error, InputError) and str(error) == str(made)
    assert (error is made) == (group.rank == last)

    full = OSError(28, "full")  # is no refusal: the others go on to where they miss this worker

    def fail():
        with agreement.refusing_together(group):
            if group.rank == last:
                raise full

    if group.rank == last:
        assert error_of(fail) is full
        agreement.texts_of_all(group, "")
    else:
        assert error_of(fail) is None


@check
def counted_bytes(group, rng):
    """What `Traffic` counts: a gather sends a tensor to all others, a sum twice (N - 1) / N."""
    others = group.size - 1
    for function, size, expected in (
        (collectives.gather, 40, others * 160),
        (collectives.sum_over, 600, 2 * others * 2400 // group.size),
    ):
        before = group.traffic.sent
        function(group, tf.ones([size]), "counted")
        assert group.traffic.sent - before == expected


def main(out):
    tf.config.set_visible_devices([], "GPU")
    group, found = join(), {}
    for name, function in CHECKS.items():
        try:
            function(group, np.random.default_rng(5))
            found[name] = ""
        except AssertionError as error:
            found[name] = f"{error}"[:3000] or "failed"
    (Path(out) / f"{group.rank}.json").write_text(json.dumps(found))
