"""How far times are from what the device can do, and what limits a kernel."""
