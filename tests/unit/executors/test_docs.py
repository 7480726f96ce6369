"""The examples of docs/executors.md run."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fusee.executors.http.request import check_http
from fusee.executors.http.template import CALLBACK_NAMES, NAMES
from fusee.executors.shell import check_shell

PAGE = Path(__file__).parents[3] / "docs" / "executors.md"
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def test_the_python_examples_run() -> None:
    examples = [code for language, code in BLOCKS if language == "python"]
    assert len(examples) >= 4
    # One interpreter for all: each example stands on its own, and starting one costs the most.
    script = "\n".join(f"exec({code!r}, {{'__name__': 'example'}})" for code in examples)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr


def test_the_payloads_are_valid() -> None:
    payloads = [json.loads(code) for language, code in BLOCKS if language == "json"]
    assert len(payloads) == 3
    for payload in payloads:
        (check_shell if "argv" in payload else check_http)(payload)


@pytest.mark.parametrize("name", [*NAMES, *CALLBACK_NAMES])
def test_every_name_is_documented(name: str) -> None:
    assert f"{{{{{name}}}}}" in PAGE.read_text(encoding="utf-8")
