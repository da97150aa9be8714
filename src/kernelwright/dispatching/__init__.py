"""Which config serves which sizes: measured, chosen, and written as a rule."""
