"""Benchmarks that compare storeds with code that works without it. `README.md` says how to run and read them."""
