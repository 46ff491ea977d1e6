"""The swarm's model behind an HTTP interface that programs written for OpenAI's know: completions, models, health.

One process that is a client of the swarm like any other: no torch, no daemon, no weights.
"""
