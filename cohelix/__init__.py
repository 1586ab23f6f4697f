"""cohelix."""
