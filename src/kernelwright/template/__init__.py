"""How a candidate is written: template files, candidates, rendering."""
