"""What loops repeat although nothing in it changes: done once, before the loop, or once for several places."""
