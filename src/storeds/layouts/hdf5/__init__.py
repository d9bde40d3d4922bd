"""Foreign layouts of HDF5."""
