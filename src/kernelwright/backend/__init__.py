"""What compiles and launches: one file a vendor, the interface in `base`."""
