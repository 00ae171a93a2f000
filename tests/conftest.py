"""One thread for small networks: beside other test processes, waiting threads cost more than they give."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(autouse=True)
def _same_draws() -> None:
    """What a test draws from torch's own generator does not depend on the tests before it."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)
