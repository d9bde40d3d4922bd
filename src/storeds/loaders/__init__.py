"""Loaders and samplers: batches in the training loop, positions, resumption."""
