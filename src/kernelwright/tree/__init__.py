"""The tree of structural ideas: a projection of a run's events, and the policies that choose where to go on."""
