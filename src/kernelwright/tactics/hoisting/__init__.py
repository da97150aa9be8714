"""What a loop repeats although nothing in it changes: done once, before the loop."""
