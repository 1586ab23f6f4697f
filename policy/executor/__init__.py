"""Where training blocks run: in this process, in a child, on a Ray cluster, or in several processes."""
