"""One thread for small networks: beside other test processes, waiting threads cost more than they give."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
