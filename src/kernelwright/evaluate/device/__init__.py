"""The process that owns one device: it launches and measures, and proves nothing."""
