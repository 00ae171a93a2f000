"""For all tests: one thread for small networks, since beside other test processes waiting threads cost more than they
give; and draws from torch's own generator that do not depend on which tests ran before.
"""

from __future__ import annotations

import os
import sys

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(autouse=True)
def _same_draws() -> None:
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)
