"""What compiles and launches: one folder an interface of a vendor, the seam in `base`."""
