import sys
from pathlib import Path

import numpy as np
import pytest
from table_schemas import schema_of_tables

from cowclip_merlin import compat

sys.path.insert(0, str(Path(__file__).parent))

FIELDS = {"a": 7, "b": 5, "c": 11}
CONTINUOUS = ("x", "y")


@pytest.fixture(scope="session")
def tf():
    return compat.tensorflow()


def make_schema(fields=FIELDS, continuous=CONTINUOUS):
    return schema_of_tables(fields, continuous=continuous)


@pytest.fixture(scope="session")
def schema():
    return make_schema()


@pytest.fixture(scope="session")
def schema_of():
    return make_schema


@pytest.fixture(scope="session")
def batch():
    rng = np.random.default_rng(0)
    values = {name: rng.integers(0, rows, [40, 1]) for name, rows in FIELDS.items()}
    return values | {name: rng.random([40, 1]).astype(np.float32) for name in CONTINUOUS}


@pytest.fixture
def randomised():
    """Gives every variable of a model random values, so that no term is zero by initialisation."""

    def apply(model, seed=1):
        rng = np.random.default_rng(seed)
        for variable in model.variables:
            variable.assign(rng.normal(0, 0.3, variable.shape))
        return model

    return apply
