import pytest

from cowclip_merlin.online import load_features


@pytest.fixture
def features(tmp_path):
    path = tmp_path / "features.yaml"
    path.write_text(
        "label: click\ntime: time\nkey: request\ncategorical: [user, item]\ncontinuous: [price]\n"
    )
    return load_features(path)
