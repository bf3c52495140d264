"""Summaries of the weights: the mean of the heads, statistics, strongest keys, rollout, words."""
