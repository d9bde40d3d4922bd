"""Helpers that do not depend on stores: arguments, locations, permutations, prefetching and text."""
