"""Pure decisions of the swarm: no I/O, no clock, no randomness that is not passed in.

The running peer and the simulator call the same functions, so what a simulation shows is what peers do.
"""
