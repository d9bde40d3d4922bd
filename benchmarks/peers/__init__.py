"""storeds and its peers, side by side on the same photographs: one small module and one process per peer."""

from benchmarks.peers.run import peers

__all__ = ["peers"]
