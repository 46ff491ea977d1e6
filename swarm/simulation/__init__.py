"""The swarm before it exists: a simulation of many volunteers that takes their decisions with the peers' own policies.

No tensors, no sockets, no clock: `simulator.Simulation` moves arrays of volunteers from round to round. Every figure
that comes out of here is simulated and says so. What is modelled, and what is not: docs/scaling.md.
"""
