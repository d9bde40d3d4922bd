"""Versioned stores: a folder of immutable stores, its members, and of numbered versions that say which records they have."""
