"""Measures storeds against what people would write or use without it: ``python -m benchmarks`` lists the entries."""
