"""One file a command: words in, library calls, tables out."""
