"""One canonical form of networks."""
