"""storeds and its peers, side by side on the same photographs: one small module a peer, one process for each."""
