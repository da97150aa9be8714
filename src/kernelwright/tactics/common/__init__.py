"""What tactics of every kind need: edits, dialects, launches, iteration domains, predictions."""
