"""The kernels of the corpus, attacks and honest ones, by what they do."""
