"""HTTP routes, and the guard in front of them."""
