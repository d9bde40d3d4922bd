"""Batches: collating samples, and memory that batches share between processes."""
