"""Two machines, one folder between them: requests go one way, results come back."""
