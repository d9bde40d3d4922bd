"""Datasets: map-style and iterable-style, with their policies for bad samples."""
