"""Language models behind one seam: requests in, replies with their cost out. Nothing here knows what a kernel is."""
