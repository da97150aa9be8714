"""Fakes and contract tests, shipped with the seams so that every implementation can be held to them."""
