"""Learning under deadlines, simulated: real training by virtual workers whose updates arrive late, or not at all."""
