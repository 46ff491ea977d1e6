"""What is learned: the block-local objective, its learner and readouts. Knows no network and no clock."""
