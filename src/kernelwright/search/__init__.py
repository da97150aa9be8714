"""Who proposes: searchers behind the ask/tell seam. They never build, run, time, store or log."""
