#!/usr/bin/env python3
"""What a command costs: the CPU seconds of it and its children, and the peak memory of the largest of them.

  tools/cost_of.py command...        prints "seconds megabytes", ends with the command's exit code

The peak counts pages, so it is the same run after run where the time of a shared machine is not.
"""
import os
import signal
import subprocess
import sys
import tempfile


def cost_of(command, text="", timeout=600):
    """Returns (exit code or None after the timeout, output, error output, CPU seconds, peak MB)."""
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        given.write(text.encode())
        given.seek(0)
        with subprocess.Popen(command, stdin=given, stdout=out, stderr=err) as process:
            stopped = []
            signal.signal(signal.SIGALRM, lambda *_: (stopped.append(1), process.kill()))
            signal.alarm(timeout)
            _, status, usage = os.wait4(process.pid, 0)
            signal.alarm(0)
            process.returncode = os.waitstatus_to_exitcode(status)
        printed = []
        for file in (out, err):
            file.seek(0)
            printed.append(file.read().decode(errors="replace"))
    return (None if stopped else process.returncode, printed[0], printed[1],
            usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


if __name__ == "__main__":
    code, _, complaint, seconds, peak = cost_of(sys.argv[1:])
    sys.stderr.write(complaint)
    print(f"{seconds:.3f} {peak:.1f}")
    sys.exit(1 if code is None else code)
