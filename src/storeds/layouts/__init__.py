"""Foreign layouts: how stores that other tools wrote are read."""
