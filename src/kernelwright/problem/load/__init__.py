"""A problem from its TOML file, checked as far as the files alone allow."""
