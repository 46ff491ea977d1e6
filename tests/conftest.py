"""For all tests."""

import signal

# A suite started in the background of a shell inherits an ignored SIGINT, which Python, and every process started from
# here, would leave ignored: then no test of Ctrl-C could pass.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
