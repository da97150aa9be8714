"""The machine with the device: takes requests out of a spool and answers them."""
