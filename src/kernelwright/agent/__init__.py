"""Roles that propose structural changes: context in, typed proposal out. They never build, run or record anything."""
