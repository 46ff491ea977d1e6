"""The long test of exact text: real holders over real connections, disturbed in every way (`make soak-serving`)."""
