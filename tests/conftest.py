"""For all tests: one thread for small networks, since beside other test processes waiting threads cost more than they
give; draws from torch's own generator that do not depend on which tests ran before; and no time limit for single
examples of Hypothesis, which a busy machine would exceed.
"""

from __future__ import annotations

import os
import sys

import pytest
from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")
settings.register_profile("any-machine", deadline=None)
settings.load_profile("any-machine")


@pytest.fixture(autouse=True)
def _same_draws() -> None:
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)
