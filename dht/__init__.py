"""Who is there: identity, p2p host, Kademlia, signed typed records, bootstrap peers."""
