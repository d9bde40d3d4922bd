"""storeds and its peers, side by side on the same photographs: one small module and one process per peer."""
