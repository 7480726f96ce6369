"""`fusee demo cdc` shows a batch from plan to rollback, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

FUSEE = [sys.executable, "-c", "from fusee.app.cli import main; main()", "demo", "cdc"]


def test_the_journal_agrees_with_the_batch(tmp_path: Path) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    done = subprocess.run([*FUSEE, "--json"], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    counts = {act: {what: many for what, many in at.items() if many} for act, at in told["acts"].items()}
    assert counts == {
        "apply": {"success": 294, "fail": 6},
        "retry": {"success": 299, "fail": 1},
        "rollback": {"rollback_success": 298, "rollback_fail": 1, "fail": 1},
    }
    assert told["verdict"]["agrees"] is True
    found = told["verdict"]["found"]
    assert (found["restored"], found["left alone"], found["untouched"]) == (298, 1, 1)
    assert list(tmp_path.iterdir()) == []


def test_interrupted_it_ends_its_control_plane_and_leaves_nothing_behind(tmp_path: Path) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1"}
    demo = subprocess.Popen(
        [*FUSEE, "--plain"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert demo.stdout is not None
    pid = next(int(line.split("pid ")[1].split(")")[0]) for line in demo.stdout if "(pid " in line)
    next(line for line in demo.stdout if "at once" in line)  # in the middle of it
    demo.send_signal(signal.SIGINT)
    _, stderr = demo.communicate(timeout=60)
    assert demo.returncode == 130, stderr
    assert "Traceback" not in stderr
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
