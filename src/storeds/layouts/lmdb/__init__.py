"""Foreign layouts of LMDB."""
