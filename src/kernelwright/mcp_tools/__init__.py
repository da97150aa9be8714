"""What a coding agent may do, as tools of the Model Context Protocol: it asks and proposes, the referee measures."""
