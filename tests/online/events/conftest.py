import pytest

from cowclip_merlin.online.events.features_file import load_features

FEATURES = """\
label: click
time: time
key: request
categorical:
- user
- {name: item, ttl: 5d, admit: 2}
continuous:
- price
- {name: age, transform: none, minimum: 0, maximum: 100}
"""


@pytest.fixture
def features_file(tmp_path):
    """Writes a features file and reads it."""

    def make(text=FEATURES, name="f.yaml"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return load_features(path)

    return make
