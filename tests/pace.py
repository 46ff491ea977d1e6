"""How busy the machine is, so that deadlines of tests on the real clock can be stretched instead of missed."""

import time


def slowness(seconds: float = 0.3) -> float:
    """How many times longer work takes here now than on an idle machine: wall time over processor time of a loop."""
    wall, processor = time.perf_counter(), time.process_time()
    while time.process_time() - processor < seconds:
        pass
    return (time.perf_counter() - wall) / seconds
