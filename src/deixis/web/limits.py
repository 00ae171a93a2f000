"""Rate limits: a bucket a caller that fills again with time (token bucket), kept in the process."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock

#: Callers remembered; those unseen for longest are forgotten first, which can only help them.
REMEMBERED = 10_000


class RateLimit:
    """At most `burst` calls at once and `rate` a second in the long run, for each caller."""

    def __init__(self, rate: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._burst, self._clock = rate, burst, clock
        self._buckets: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()
        self._lock = Lock()

    def allow(self, caller: Hashable) -> bool:
        """Take one from the caller's bucket; False if it is empty."""
        return self._take(caller, 1.0) == 0.0

    def wait(self, caller: Hashable) -> float:
        """Seconds until the caller's next call would be allowed; takes nothing."""
        return self._take(caller, 0.0)

    def _take(self, caller: Hashable, amount: float) -> float:
        with self._lock:
            now = self._clock()
            level, seen = self._buckets.pop(caller, (float(self._burst), now))
            level = min(self._burst, level + (now - seen) * self._rate)
            missing = max(0.0, 1.0 - level)
            self._buckets[caller] = (level if missing else level - amount, now)
            if len(self._buckets) > REMEMBERED:
                self._buckets.popitem(last=False)
        return missing / self._rate
