"""What compiles and launches: a folder for each vendor's interface, the seam in `base`."""
