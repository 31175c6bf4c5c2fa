"""What the package writes is what golden.json says; record.py has the words."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from record import SECTIONS, differences, record

pytestmark = pytest.mark.system


@pytest.mark.parametrize("section", SECTIONS)
def test_golden(section, tmp_path):
    assert not differences(record(section, tmp_path), section)
