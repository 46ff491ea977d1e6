"""Guessing how a text goes on, so that the swarm is asked about many bytes at once. No guess changes the text."""
