"""What a process loads that only starts workers."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.system


def test_the_launcher_loads_no_tensorflow(tmp_path):
    """Checked in a new process, since this one has trained."""
    code = (
        "import sys\nfrom cowclip_merlin.errors import InputError\n"
        "from cowclip_merlin.training import RunSettings, train\n"
        "settings = RunSettings(model='dcn', batch_size=8)\n"
        f"try:\n    train({str(tmp_path)!r}, settings, out='{tmp_path}/run', workers=2)\n"
        "except InputError as error:\n    print(error)\n"
        "assert not {'tensorflow', 'keras', 'merlin'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert str(tmp_path) in done.stdout
