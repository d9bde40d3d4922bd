"""Measurements of storeds against what one would write without it; `README.md` says how to run and read them."""
