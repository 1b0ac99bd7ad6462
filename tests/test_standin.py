"""What a GPU would be asked: training on the device of standin.py."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from standin import KINDS, LOSSES, PRECISIONS


@pytest.fixture(scope="module")
def standin() -> dict[str, Any]:
    script = Path(__file__).with_name("standin.py")
    ran = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    return json.loads(ran.stdout)


@pytest.mark.parametrize(("kind", "precision", "loss"), list(product(KINDS, PRECISIONS, LOSSES)))
def test_an_update_stays_on_its_device_and_asks_for_no_value(standin, kind, precision, loss):
    """Two batches, clipping, optimizer and moving average; each question would have been an error."""
    assert standin["steps"][f"{kind} {precision} {loss}"] == {
        "devices": "standin:0",
        "logits": f"torch.{precision}",
        "gradients": "torch.float32",
        "scaled": precision == "float16",
    }


def test_the_loop_asks_nothing_between_two_lines_of_its_log(standin):
    assert standin["loops"] == dict.fromkeys(KINDS, "8 updates without a question") | {
        "reading": "DataDependentOutputException"  # what asks is found
    }
    assert "device" in standin["mixing"]  # and so is what is left on the processor
