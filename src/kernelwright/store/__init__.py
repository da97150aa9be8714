"""What happened: append-only event log, blobs, run folders. State is a replay of the log."""
