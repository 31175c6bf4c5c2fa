"""What can be tested of the images without Docker: the entry point, and what NVIDIA's image adds.

In NVIDIA's image, `import merlin.models.tf` starts Horovod and the Sparse Operation Kit. Stand-ins
for both are on the path here. `.ci/run` also does the smoke run of the NGC line with them.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[2]
STAND_INS = Path(__file__).with_name("stand_ins")
DOCKERFILES = sorted((ROOT / "containers").glob("Dockerfile.*"))


def run(*words, **environment):
    return subprocess.run(words, capture_output=True, text=True, env={**os.environ, **environment})


def test_the_output_of_a_command_stays_clean(data, tmp_path):
    words = ["train", str(data), "--out", str(tmp_path / "run"), "--model", "deepfm"]
    words += ["--batch-size", "1024", "--epochs", "1", "--mlp", "8", "--update", "dense"]
    done = run(sys.executable, "-m", "cowclip_merlin", *words, PYTHONPATH=str(STAND_INS))
    assert done.returncode == 0, done.stderr
    # The stand-ins were started, and printed.
    for line in ("[SOK INFO] Import", "[SOK INFO] Initialize finished", "native code prints, too"):
        assert line in done.stderr and line not in done.stdout
    assert re.match(rf"deepfm on {data}: ", done.stdout), done.stdout
    assert "stand-in" not in done.stdout


def script(path, text):
    path.write_text("#!/usr/bin/env bash\n" + text)
    path.chmod(0o755)
    return path


@pytest.fixture
def path(tmp_path):
    """A PATH with a `cowclip` that prints its arguments, one a line, and its process id."""
    script(tmp_path / "cowclip", 'printf "%s\\n" "$@" $$; exit 7\n')
    return f"{tmp_path}:{os.environ['PATH']}"


ENTRY = str(ROOT / "containers/entrypoint.sh")


def test_the_entry_point_runs_nvidias_first(path, tmp_path):
    """NVIDIA's script prints a banner, sets variables and runs its arguments in its place."""
    nvidia = script(tmp_path / "nvidia.sh", 'echo "== Merlin =="; export SET=1; exec "$@"\n')
    shell = subprocess.Popen(
        [ENTRY, "train", "two words", "*"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PATH": path, "NVIDIA_ENTRYPOINT": str(nvidia)},
    )
    out, error = shell.communicate()
    assert out.splitlines() == ["train", "two words", "*", str(shell.pid)]
    assert error == "== Merlin ==\n" and shell.returncode == 7


def test_a_failing_entry_point_of_nvidia_fails(path, tmp_path):
    nvidia = script(tmp_path / "nvidia.sh", "echo no driver >&2; exit 3\n")
    done = run(ENTRY, "train", PATH=path, NVIDIA_ENTRYPOINT=str(nvidia))
    assert (done.returncode, done.stdout, done.stderr) == (3, "", "no driver\n")


def test_without_nvidias_script_cowclip_runs(path, tmp_path):
    done = run(ENTRY, "scale", PATH=path, NVIDIA_ENTRYPOINT=str(tmp_path / "none"))
    assert done.returncode == 7 and done.stdout.splitlines()[0] == "scale"


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda f: f.name)
def test_the_images_use_the_entry_point_and_no_root(file):
    text = file.read_text()
    assert 'ENTRYPOINT ["/opt/cowclip-merlin/containers/entrypoint.sh"]' in text
    assert "COPY . /opt/cowclip-merlin" in text and "USER 1001" in text
    assert os.access(ENTRY, os.X_OK)
