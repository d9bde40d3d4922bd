"""The MongoDB engine."""
