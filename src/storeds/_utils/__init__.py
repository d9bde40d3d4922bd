"""Helpers that know nothing of stores: paths, processes, text, random permutations."""
