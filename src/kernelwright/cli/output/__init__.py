"""What commands print: tables, progress, warnings."""
