"""The fault matrix: every fault in every phase of a round, by a member and by the leader (docs/testing.md)."""
