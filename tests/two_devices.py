"""A Python process whose TensorFlow has two devices of the CPU; it runs one script after another.

Devices cannot be added once TensorFlow has started, and to import it takes seconds. Scripts find
`two`, the strategy of both devices: TensorFlow gives the collective operations of each strategy
the same numbers, so there can be only one.
"""

import contextlib
import io
import json
import os
import subprocess
import sys
import threading
import traceback
import warnings


class TwoDevices:
    """Runs scripts in that process, which starts with the first one."""

    def __init__(self, environment):
        self._environment, self._process = environment, None

    def run(self, script, *arguments, timeout=600):
        """What the script prints; `sys.argv[1:]` are the arguments.

        Raises:
            AssertionError: the script failed, or took longer than `timeout` seconds.
        """
        if self._process is None:
            self._start()
        late = threading.Timer(timeout, self._process.kill)
        late.start()
        try:
            self._process.stdin.write(json.dumps([script, arguments]) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        finally:
            late.cancel()
        if not answer:
            self.stop()
        assert answer, "the process ended"
        output, error = json.loads(answer)
        if error is not None:
            self.stop()  # TensorFlow does not recover from an error on one of its replicas
        assert error is None, output + error
        return output

    def stop(self):
        if self._process is not None:
            self._process.communicate()  # the end of its input is the end of it
            self._process = None

    def _start(self):
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=self._environment,
        )


def serve():
    """Run what comes on the standard input; answer with output and error."""
    from cowclip_merlin import compat

    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever else is printed does not go among them
    tf = compat.tensorflow()
    tf.config.set_visible_devices([], "GPU")
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    names = {"__name__": "__main__", "two": tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])}
    for line in sys.stdin:
        script, arguments = json.loads(line)
        print(json.dumps(_run(script, arguments, dict(names))), file=answers, flush=True)


def _run(script, arguments, names):
    printed, path = io.StringIO(), list(sys.path)
    sys.argv[1:] = arguments
    try:
        with contextlib.redirect_stdout(printed), warnings.catch_warnings():
            exec(compile(script, "<script>", "exec"), names)
        return printed.getvalue(), None
    except BaseException:
        return printed.getvalue(), traceback.format_exc()
    finally:
        sys.path[:] = path


if __name__ == "__main__":
    sys.path.pop(0)  # this folder
    serve()
