"""The loop: the only place that constructs things."""
