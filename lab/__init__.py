"""Experiments on the learning method: what is measured, and how, apart from any live swarm."""
