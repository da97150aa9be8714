"""What a run found, read from its record: results, verdicts, gains on each workload."""
