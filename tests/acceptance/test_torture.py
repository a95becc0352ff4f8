"""The torture run as a person starts it: zeros with the guards, full of violations without."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from support.servers import available


def torture(*arguments: str) -> tuple[int, dict[str, Any]]:
    pytest.importorskip("aiosmtpd")
    with available():
        done = subprocess.run(
            [sys.executable, "-m", "scheduler", "torture", "--json", *arguments],
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.mark.timeout(600)
def test_half_a_minute_of_faults_accepts_nothing_stale_loses_nothing_and_doubles_nothing() -> None:
    status, told = torture("--minutes", "0.5", "--seed", "7")
    assert (told["violations"], told["lost"], told["doubles"]) == (0, 0, 0), told["told"]
    assert status == 0
    effects = told["effects"]
    assert effects["attempted"] == sum(count for end, count in effects.items() if end != "attempted")
    assert effects["accepted"] > 50
    assert effects["refused"] > 0, "no fault made anybody stale: the run has lost its teeth"
    assert sum(told["faults"].values()) > 5
    assert told["jobs"] == {"enqueued": told["jobs"]["enqueued"], "dead": 0}


@pytest.mark.timeout(600)
def test_the_same_without_guards_is_full_of_violations() -> None:
    status, told = torture("--minutes", "0.25", "--seed", "7", "--unfenced", "--workers", "3")
    assert status == 0
    assert told["violations"] + told["doubles"] > 0
    assert told["effects"]["refused"] == 0
