"""What is worked out of the weights: their average over the heads, statistics, strongest keys."""
