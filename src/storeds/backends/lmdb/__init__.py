"""The LMDB engine."""
