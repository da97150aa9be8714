"""Where the work of a run is done: on this machine, or on another one behind a folder."""
