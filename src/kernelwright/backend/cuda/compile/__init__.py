"""From a build unit to a cubin."""
