"""Commands by which others use what was found: continuous integration, browsers, coding agents."""
