"""The HDF5 engine."""
