"""`fusee demo` shows what it says, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

FUSEE = [sys.executable, "-c", "from fusee.app.cli import main; main()", "demo"]


def test_the_demo_keeps_its_promises(tmp_path: Path) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    done = subprocess.run([*FUSEE, "--json"], env=environment, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    runs = told["runs"]
    ends = {name: (run["status"], run["attempt"]) for name, run in runs.items()}
    assert ends == {
        "greet": ("succeeded", 1),
        "remind": ("succeeded", 1),
        "flaky": ("succeeded", 3),
        "export": ("canceled", 1),
        "slow": ("timed_out", 1),
        "encode": ("succeeded", 2),
    }
    assert runs["encode"]["worker"] == "first-worker"
    assert {fire["decision"] for fire in told["fires"]} >= {"run", "skip"}
    times = [fire["fire_time"] for fire in told["fires"]]
    assert len(set(times)) == len(times)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_demo_leaves_nothing_behind(tmp_path: Path) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1"}
    demo = subprocess.Popen(
        [*FUSEE, "--plain"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert demo.stdout is not None
    pid = next(int(line.split("pid ")[1].split(")")[0]) for line in demo.stdout if "(pid " in line)
    demo.send_signal(signal.SIGINT)
    _, stderr = demo.communicate(timeout=30)
    assert demo.returncode == 130, stderr
    assert "Traceback" not in stderr
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
