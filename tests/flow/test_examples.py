"""Every example runs as it stands, and shows what it says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

SHOWN = {
    "hello.py": ["hello Ada", "233168", "attempt 3 made it", "timed_out", "one run"],
    "bulk_job.py": [
        "credit: stopped",
        "credit: finished, 49998 done, 2 quarantined of 50000",
        "on record: 49998, replayed: 0",
        "account 4711: the account is closed, tried 2 times",
        "credit (quarantine): finished, 2 done, 0 quarantined of 2",
        "credit (undo): finished, 49998 done, 0 quarantined of 49998",
        "on record: 2, those of the second job",
    ],
    "bulk_enqueue.py": ["enqueued 20000 runs", "executed 20001 runs"],
    "embed_fastapi.py": ["202", "succeeded 2 x clock", "shipped"],
    "http_callbacks.py": [
        "called back: 200 delayed",
        "costs: succeeded at attempt 2",
        "forgotten: timed_out",
    ],
    "own_operation.py": [
        "would change shop-1: {'state': ('off', 'on')}",
        "success: 8 success",
        "on: 8",
        "rollback_fail: 1 success, 6 rollback_success, 1 rollback_fail",
        "'shop-3': 'on', 'shop-4': 'off', 'shop-5': 'broken'",
    ],
    "scheduled.py": ["nightly: ", "overlap_action SKIP", "digested", "would have run"],
    "testing_with_kit.py": ["3 passed"],
    "workflow.py": [
        "2026-11-15: succeeded, 5 of 5 nodes",
        "a bad day: failed",
        "report: skipped",
        "tidy up after workflow run 2",
    ],
}


def test_every_example_is_run() -> None:
    assert {file.name for file in EXAMPLES.glob("*.py")} == set(SHOWN)


@pytest.mark.parametrize("name", SHOWN)
def test_example(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name)], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for text in SHOWN[name]:
        assert text in done.stdout
    left = [path.name for path in tmp_path.iterdir() if path.name != ".pytest_cache"]
    assert left == []
