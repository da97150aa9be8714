"""The same problems with several policies, models and memories, again and again."""
