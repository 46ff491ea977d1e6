"""Text from a swarm over slow lines, beside a plain pipeline of the same blocks on the same hosts."""
