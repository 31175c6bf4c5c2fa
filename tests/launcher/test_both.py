"""What a launcher promises wherever its workers run: on this machine, and in Dask workers."""

import sys

import pytest

from cowclip_merlin.errors import InputError, WorkerLost
from cowclip_merlin.launcher import Patience
from cowclip_merlin.training import Stopped

pytestmark = pytest.mark.system


class Launched:
    """The fixture `where` gives the options of a launch."""

    def test_only_the_output_of_the_first_worker_is_shown(self, fake, where, capfd):
        fake.run("print('out ä', rank); print('err ä', rank, file=sys.stderr)", **where)
        assert capfd.readouterr() == ("out ä 0\n", "err ä 0\n")

    def test_output_appears_while_the_worker_runs(self, fake, where, monkeypatch):
        class Stream:
            def write(self, text):
                fake.say("seen")

            def flush(self):
                pass

        monkeypatch.setattr(sys, "stdout", Stream())
        fake.run("if rank == 0: print('first', flush=True)\nwait_for('seen')", **where)

    @pytest.mark.parametrize("rank", [0, 1])
    def test_wrong_input_is_the_line_of_the_worker(self, fake, where, capfd, quick, rank):
        body = (
            f"if rank == {rank}:\n"
            "    print('noise\\ncowclip: error: x.txt: no such file', file=sys.stderr)\n"
            "    sys.exit(2)\n"
            "sys.exit(75)\n"
        )
        place = "" if rank == 0 else r"worker 1 on .*: "
        with pytest.raises(InputError, match=rf"^{place}x\.txt: no such file$") as caught:
            fake.run(body, patience=quick, restarts=3, **where)
        assert type(caught.value) is InputError
        assert len(fake.pids()) == 2, "wrong input is not tried again"
        assert "error" not in capfd.readouterr().err

    @pytest.mark.parametrize("rank", [0, 1])
    def test_a_killed_worker_is_named(self, fake, where, quick, rank):
        body = f"os.kill(os.getpid(), 9) if rank == {rank} else sys.exit(75)"
        with pytest.raises(WorkerLost, match=f"worker {rank} of 2 on .*signal 9"):
            fake.run(body, patience=quick, **where)

    def test_a_stubborn_worker_is_killed(self, fake, where):
        body = (
            "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
            "if rank == 1:\n    wait_for('ready'); sys.exit(1)\n"
            "(here / 'ready').touch()\nforever()"
        )
        with pytest.raises(WorkerLost, match=r"worker 1 of 2 .*exit code 1"):
            fake.run(body, patience=Patience(grace=0.2, term=0.2), **where)

    @pytest.mark.parametrize("code", [130, 143])
    def test_a_worker_that_stopped_with_a_checkpoint_stops_all(self, fake, where, code):
        with pytest.raises(Stopped) as caught:
            fake.run(f"checkpoint(); sys.exit({code})", restarts=2, **where)
        assert caught.value.signal_number == code - 128
        assert len(fake.pids()) == 2

    def test_a_restart_resumes_from_a_checkpoint(self, fake, where, quick, capfd):
        body = (
            "resume = call['options']['resume']\n"
            "(here / f'call-{rank}-{attempt}').write_text(f'{resume} {out.exists()}')\n"
            "if attempt == 0:\n    wait_for('call-0-0')\n    wait_for('call-1-0')\n"
            "    checkpoint()\n    os.kill(os.getpid(), 9)"
        )
        fake.run(body, restarts=1, patience=quick, **where)
        saw = [(fake.folder / f"call-{r}-{a}").read_text() for a in range(2) for r in range(2)]
        assert saw == ["False False"] * 2 + ["True True"] * 2
        lines = capfd.readouterr().err.splitlines()
        assert len(lines) == 1 and "killed by signal 9" in lines[0]
        assert lines[0].endswith("; restart 1 of 1 from the last checkpoint")


class TestHere(Launched):
    pytestmark = pytest.mark.quick

    @pytest.fixture
    def where(self):
        return {}


class TestDask(Launched):
    @pytest.fixture
    def where(self, scheduler):
        return {"scheduler": scheduler}
