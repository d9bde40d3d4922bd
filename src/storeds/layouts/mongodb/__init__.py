"""Foreign layouts of MongoDB."""
