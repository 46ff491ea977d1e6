"""The long test: hundreds of rounds of a real swarm under faults drawn at random (`make soak`)."""
